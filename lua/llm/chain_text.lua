-- A chain of samplers as it is written: text ("top_k=40, dry(multiplier=0.8)"), or data, such as
-- that of a line of JSON.

local chain_text = {}

-- ---- text ----

-- Splits at commas outside of brackets and quotes. Returns the parts without spaces around them; or
-- nil and what is wrong.
local function split(text)
  local parts, open, from, at = {}, {}, 1, 1
  local close = {["("] = ")", ["["] = "]"}
  while at <= #text do
    local c = text:sub(at, at)
    if c == '"' or c == "'" then
      local last = at
      repeat
        last = text:find("[" .. c .. "\\]", last + 1)
        if not last then return nil, ("the %s at character %d is not closed"):format(c, at) end
        local is_escape = text:sub(last, last) == "\\"
        if is_escape then last = last + 1 end
      until not is_escape
      at = last
    elseif close[c] then
      open[#open + 1] = close[c]
    elseif c == ")" or c == "]" then
      if table.remove(open) ~= c then
        return nil, ("the %s at character %d closes nothing"):format(c, at)
      end
    elseif c == "," and #open == 0 then
      parts[#parts + 1] = text:sub(from, at - 1)
      from = at + 1
    end
    at = at + 1
  end
  if #open > 0 then return nil, ("%s is missing at the end"):format(open[#open]) end
  parts[#parts + 1] = text:sub(from)
  for i, part in ipairs(parts) do parts[i] = part:match("^%s*(.-)%s*$") end
  return parts
end

local ESCAPES = {n = "\n", t = "\t", r = "\r", ["\\"] = "\\", ['"'] = '"', ["'"] = "'"}

local function unescape(text)
  return (text:gsub("\\(.)(%x?%x?%x?%x?)", function(c, hex)
    if c == "u" and #hex == 4 then return utf8.char(tonumber(hex, 16)) end
    return (ESCAPES[c] or "\\" .. c) .. hex
  end))
end

local WORDS = {["true"] = true, ["false"] = false, ["-inf"] = -math.huge}
local REFUSED = {nan = true, inf = true, ["-nan"] = true, [""] = true}

local read_value

local function read_list(text)
  local out = {}
  if text:find("^%s*$") then return out end
  for i, part in ipairs(split(text) or {""}) do
    out[i] = read_value(part)
    if out[i] == nil then return nil end
  end
  return out
end

-- A number, true, false, a quoted text, a list in [ ], or a word; nil if it is none.
function read_value(text)
  local first = text:sub(1, 1)
  if first == '"' or first == "'" then
    local inside = text:match("^" .. first .. "(.*)" .. first .. "$")
    local bare = inside and inside:gsub("\\.", "")
    return bare and not bare:find(first, 1, true) and unescape(inside) or nil
  end
  if first == "[" then
    local inside = text:match("^%[(.*)%]$")
    return inside and read_list(inside)
  end
  if WORDS[text] ~= nil then return WORDS[text] end
  if REFUSED[text] or text:find("[%[%]()\"']") then return nil end
  return tonumber(text) or text
end

local function read_params(text)
  local params = {}
  if text:find("^%s*$") then return params end
  for _, part in ipairs(split(text)) do
    local name, written = part:match("^([%a_][%w_]*)%s*=%s*(.*)$")
    if not name then return nil, ("'%s' is no parameter with its value"):format(part) end
    local value = read_value(written)
    if value == nil then return nil, ("'%s' is no value of %s"):format(written, name) end
    if params[name] ~= nil then return nil, ("%s is given twice"):format(name) end
    params[name] = value
  end
  return params
end

local function read_stage(text)
  local name, inside = text:match("^([%w_./-]+)%s*%((.*)%)$")
  if name then
    local params, why = read_params(inside)
    return params and {name = name, params = params}, why
  end
  local written
  name, written = text:match("^([%w_./-]+)%s*=%s*(.*)$")
  if name then
    local value = read_value(written)
    if value == nil then return nil, ("'%s' is no value"):format(written) end
    return {name = name, bare = value}
  end
  return text:find("^[%w_./-]+$") and {name = text, params = {}} or nil
end

local function read_text(text)
  local stages = {}
  if text:find("^%s*$") then return stages end
  local parts, why = split(text)
  for _, part in ipairs(parts or {text}) do
    local stage
    if parts then stage, why = read_stage(part) end
    if not stage then
      return nil, ("sampler '%s' is not NAME, NAME=VALUE or NAME(PARAMETER=VALUE, …)%s")
        :format(part, why and ": " .. why or "")
    end
    stages[#stages + 1] = stage
  end
  return stages
end

-- ---- data ----

local KEYS = {name = true, params = true, bare = true}

-- {name = …, params = {…}}, {name = …, bare = value}, or {NAME = value}, {NAME = {…}}.
local function read_record(record)
  local name, value = next(record)
  if type(name) == "string" and record.name == nil and next(record, name) == nil then
    local is_list = type(value) ~= "table" or #value > 0
    return is_list and {name = name, bare = value} or {name = name, params = value}
  end
  local unknown = {}
  for key in pairs(record) do
    if not KEYS[key] then unknown[#unknown + 1] = tostring(key) end
  end
  table.sort(unknown)
  if unknown[1] then return nil, ("has the unknown key '%s'"):format(unknown[1]) end
  if type(record.name) ~= "string" then return nil, "has no name" end
  if record.bare ~= nil then
    if record.params ~= nil then return nil, "has params and bare" end
    return {name = record.name, bare = record.bare}
  end
  if record.params ~= nil and type(record.params) ~= "table" then
    return nil, ("has params that are a %s"):format(type(record.params))
  end
  return {name = record.name, params = record.params or {}}
end

local function read_data(list)
  local stages = {}
  for i, item in ipairs(#list > 0 and list or next(list) ~= nil and {list} or {}) do
    if type(item) == "string" then
      local some, message = read_text(item)
      if not some then return nil, message end
      table.move(some, 1, #some, #stages + 1, stages)
    elseif type(item) == "table" then
      local stage, why = read_record(item)
      if not stage then return nil, ("sampler %d of the list %s"):format(i, why) end
      stages[#stages + 1] = stage
    else
      return nil, ("sampler %d of the list is a %s"):format(i, type(item))
    end
  end
  return stages
end

-- A list of {name, params} or {name, bare}: the only parameter; or nil, message. chain: text; or a
-- list of texts and of {name = …, params = {…}}, {NAME = {…}}, {NAME = value}.
function chain_text.parse(chain)
  if type(chain) == "table" then return read_data(chain) end
  if type(chain) == "string" then return read_text(chain) end
  return nil, ("a chain of samplers is a text or a list, got a %s"):format(type(chain))
end

-- ---- writing ----

local WRITTEN = {["\n"] = "\\n", ["\r"] = "\\r", ["\\"] = "\\\\", ['"'] = '\\"'}

local function write_number(value)
  local short = ("%.15g"):format(value)
  return tonumber(short) == value and short or ("%.17g"):format(value)
end

local function write_value(value)
  if type(value) == "string" then return '"' .. value:gsub('[\n\r\\"]', WRITTEN) .. '"' end
  if math.type(value) == "float" then return write_number(value) end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = write_value(item) end
  return "[" .. table.concat(parts, ", ") .. "]"
end

-- The text of a chain, one for all chains that are equal; or nil, message.
function chain_text.write(chain)
  local stages, message = chain_text.parse(chain)
  if not stages then return nil, message end
  local parts = {}
  for i, stage in ipairs(stages) do
    local params = {}
    for name, value in pairs(stage.params or {}) do
      params[#params + 1] = name .. "=" .. write_value(value)
    end
    table.sort(params)
    parts[i] = stage.bare ~= nil and ("%s=%s"):format(stage.name, write_value(stage.bare))
      or ("%s(%s)"):format(stage.name, table.concat(params, ", "))
  end
  return table.concat(parts, ", ")
end

return chain_text
