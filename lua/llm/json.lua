-- JSON as llmlua writes and reads it: dkjson with the keys in the order of the result schema, lists
-- that stay lists when they are empty, and broken UTF-8 replaced.

local dkjson = require "dkjson"
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

local list_meta = {__jsontype = "array"}

-- Marks a list, so that it is [] when empty.
function json.list(t)
  return setmetatable(t, list_meta)
end

-- One line of JSON. Infinities and NaN become null.
function json.encode(value, order)
  local function clean(v)
    if type(v) == "string" then return text.sanitize(v) end
    if type(v) ~= "table" or v == json.null then return v end
    local out = setmetatable({}, getmetatable(v))
    for k, item in pairs(v) do out[clean(k)] = clean(item) end
    return out
  end
  return dkjson.encode(clean(value), {keyorder = order or ORDER})
end

-- A value, or nil, message. null is json.null; integers stay integers.
function json.decode(line)
  local value, after, message = dkjson.decode(line, 1, json.null)
  if message then return nil, message end
  if line:find("%S", after) then return nil, "more than one value" end
  return value
end

return json
