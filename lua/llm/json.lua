-- JSON as llmlua writes and reads it: the keys in the order of the result schema, lists that stay
-- lists when they are empty, broken UTF-8 replaced. dkjson reads it.

local dkjson = require "dkjson"
local strict = require "llm.json_strict"
local text = require "llm.text"

local json = {null = dkjson.null}

local ORDER = {
  "index", "id", "seed", "text", "ids", "score", "finish", "prompt_ids", "outputs",
  "logprobs", "processed_logprobs", "counts", "timings", "error",
  "token", "logprob", "top",
  "prompt", "output",
  "load_s", "ttft_s", "prefill_tps", "decode_tps", "prefix_tokens", "recomputed_tokens", "passes",
  "kind", "message", "traceback",
}

local rank = {}
for i, key in ipairs(ORDER) do rank[key] = i end

local list_meta = {__jsontype = "array"}

-- Marks a list, so that it is [] when empty.
function json.list(t)
  return setmetatable(t, list_meta)
end

-- All keys: those of the order first, then the others by their text. The line of a value is thus
-- the same in every run.
local function sorted_keys(t, places)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b)
    local x, y = places[a] or math.huge, places[b] or math.huge
    if x ~= y then return x < y end
    return tostring(a) < tostring(b)
  end)
  return keys
end

local function is_list(t)
  local n = #t
  if n > 0 then return next(t, n) == nil end
  local meta = getmetatable(t)
  return next(t) == nil and meta and meta.__jsontype == "array"
end

local encode = {}

function encode.string(v) return dkjson.quotestring(text.sanitize(v)) end

encode.boolean = tostring

function encode.number(v)
  if v ~= v or v == math.huge or v == -math.huge then return "null" end
  return tostring(v)
end

function encode.table(v, places)
  if v == json.null then return "null" end
  local parts = {}
  if is_list(v) then
    for i, item in ipairs(v) do parts[i] = encode[type(item)](item, places) end
    return "[" .. table.concat(parts, ",") .. "]"
  end
  for i, key in ipairs(sorted_keys(v, places)) do
    parts[i] = encode.string(tostring(key)) .. ":" .. encode[type(v[key])](v[key], places)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- One line of JSON. Infinities and NaN become null.
function json.encode(value, order)
  local places = rank
  if order then
    places = {}
    for i, key in ipairs(order) do places[key] = i end
  end
  return encode[type(value)](value, places)
end

-- Whether a value that was read is an object.
function json.is_object(value)
  local meta = type(value) == "table" and value ~= json.null and getmetatable(value)
  return meta and meta.__jsontype == "object" or false
end

-- A value, or nil, message. null is json.null; integers stay integers.
function json.decode(line)
  local ok, value, after, message = pcall(dkjson.decode, line, 1, json.null)
  if not ok then return nil, "nested too deeply" end
  if message then return nil, message end
  if line:find("%S", after) then return nil, "more than one value" end
  ok, message = strict(line)
  if not ok then return nil, message end
  return value
end

return json
