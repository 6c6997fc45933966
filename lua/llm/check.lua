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

local function read(opts, name, default, low, high, whole)
  local value = opts[name]
  if value == nil then value = default end
  low, high = low or -math.huge, high or math.huge
  if is_good(value, low, high, whole) then return whole and math.tointeger(value) or value end
  local message = value == nil and ("%s is missing"):format(name)
    or ("%s must be %s, got %s"):format(name,
      describe(whole and "an integer" or "a number", low, high), tostring(value))
  local problems = check.problems[opts]
  if not problems then fail.raise("misuse", "%s", message) end
  problems[#problems + 1] = message
  local stand_in = math.max(low, math.min(high, 1))
  return whole and math.tointeger(stand_in) or stand_in
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

return check
