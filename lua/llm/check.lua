-- Checks of what scripts give: tensors, and the parameters of samplers, which are read once, when
-- the stage is made, with their range.

local llm = require "llm"
local fail = require "llm.fail"

local check = {}

-- By opts: a list that collects what is wrong, so that a stage is made to its end and all that it
-- asks for is known (see llm.chain); for all other opts it is raised.
check.problems = setmetatable({}, {__mode = "k"})

local function describe(what, low, high)
  if low > -math.huge and high < math.huge then
    return ("%s from %s to %s"):format(what, low, high)
  end
  if low > -math.huge then return ("%s of at least %s"):format(what, low) end
  if high < math.huge then return ("%s of at most %s"):format(what, high) end
  return what
end

local function is_good(value, low, high, whole)
  return type(value) == "number" and value >= low and value <= high
    and math.abs(value) < math.huge and (not whole or math.tointeger(value) ~= nil)
end

-- Says what is wrong with a parameter; `stand_in` takes its place where problems are collected.
local function refuse(opts, stand_in, format, ...)
  local problems = check.problems[opts]
  if not problems then fail.raise("misuse", format, ...) end
  problems[#problems + 1] = format:format(...)
  return stand_in
end

local function show(value)
  return type(value) == "table" and "a list" or tostring(value)
end

local function read(opts, name, default, low, high, whole)
  local value = opts[name]
  if value == nil then value = default end
  low, high = low or -math.huge, high or math.huge
  if is_good(value, low, high, whole) then return whole and math.tointeger(value) or value end
  local stand_in = math.max(low, math.min(high, 1))
  if whole then stand_in = math.tointeger(stand_in) end
  if value == nil then return refuse(opts, stand_in, "%s is missing", name) end
  return refuse(opts, stand_in, "%s must be %s, got %s", name,
    describe(whole and "an integer" or "a number", low, high), show(value))
end

-- A value that passes the test; `what` says in words what that is.
local function read_as(opts, name, default, what, stand_in, test)
  local value = opts[name]
  if value == nil then value = default end
  if value == nil then return refuse(opts, stand_in, "%s is missing", name) end
  if test(value) then return value end
  return refuse(opts, stand_in, "%s must be %s, got %s", name, what, show(value))
end

local function is_list(value, test)
  if type(value) ~= "table" then return false end
  local n = 0
  for _ in pairs(value) do n = n + 1 end
  for i = 1, n do
    if value[i] == nil or test and not test(value[i]) then return false end
  end
  return true
end

local function is_id(value)
  local id = math.type(value) and math.tointeger(value)
  return id ~= nil and id ~= false and id >= 0 and id < 1 << 31
end

local function is_id_list(value)
  return is_list(value, is_id) and #value > 0
end

local function is_text(value)
  return type(value) == "string" and value ~= ""
end

function check.is_tensor(value)
  local name = llm.type(value)
  return name == "llm.Logits" or name == "llm.Tensor"
end

-- opts[name], or `default`; a number, finite, from `low` to `high` (nil: no bound).
function check.number(opts, name, default, low, high)
  return read(opts, name, default, low, high, false)
end

-- The same for a whole number.
function check.integer(opts, name, default, low, high)
  return read(opts, name, default, low, high, true)
end

function check.boolean(opts, name, default)
  return read_as(opts, name, default, "true or false", false, function(value)
    return type(value) == "boolean"
  end)
end

function check.text(opts, name, default)
  return read_as(opts, name, default, "a text", "", function(value)
    return type(value) == "string"
  end)
end

-- A list of texts that are not empty; one text is a list of one.
function check.texts(opts, name, default)
  local value = read_as(opts, name, default, "a list of texts", {}, function(value)
    return is_text(value) or is_list(value, is_text)
  end)
  return type(value) == "string" and {value} or value
end

-- A list of anything; `what` says in words what it holds.
function check.list(opts, name, default, what)
  return read_as(opts, name, default, what, {}, is_list)
end

-- A list of at least one token id; one id is a list of one.
function check.ids(opts, name, default)
  local value = read_as(opts, name, default, "a list of token ids", {0}, function(value)
    return is_id(value) or is_id_list(value)
  end)
  return type(value) == "table" and value or {value}
end

-- A list of lists of token ids.
function check.id_lists(opts, name, default)
  return read_as(opts, name, default, "a list of lists of token ids", {}, function(value)
    return is_list(value, is_id_list)
  end)
end

-- A list of {ids, x}, or {id, x}: as a new list of records {ids = list, x = number}. x may be −inf,
-- also as the text "-inf".
function check.bias(opts, name)
  local function is_amount(x)
    return x == "-inf" or type(x) == "number" and x < math.huge
  end
  local value = read_as(opts, name, nil, "a list of [ids, x]", {}, function(value)
    return is_list(value, function(entry)
      return is_list(entry) and #entry == 2 and is_amount(entry[2])
        and (is_id(entry[1]) or is_id_list(entry[1]))
    end)
  end)
  local out = {}
  for i, entry in ipairs(value) do
    local ids, x = entry[1], entry[2]
    ids = type(ids) == "table" and table.move(ids, 1, #ids, 1, {}) or {ids}
    out[i] = {ids = ids, x = x == "-inf" and -math.huge or x}
  end
  return out
end

return check
