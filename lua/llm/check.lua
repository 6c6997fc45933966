-- Checks of what scripts give: tensors, and the parameters of samplers, which are read once, when
-- the stage is made, with their range.

local llm = require "llm"
local fail = require "llm.fail"

local check = {}

function check.is_tensor(value)
  local name = llm.type(value)
  return name == "llm.Logits" or name == "llm.Tensor"
end

-- opts[name], or `default`; a number, finite unless it may be infinite, from `low` to `high`.
function check.number(opts, name, default, low, high)
  local value = opts[name]
  if value == nil then value = default end
  low, high = low or -math.huge, high or math.huge
  if value == nil then fail.raise("misuse", "%s is missing", name) end
  if type(value) ~= "number" or value ~= value or value < low or value > high
    or math.abs(value) == math.huge then
    fail.raise("misuse", "%s must be a number from %s to %s, got %s", name, low, high,
      tostring(value))
  end
  return value
end

-- The same for a whole number.
function check.integer(opts, name, default, low, high)
  local value = check.number(opts, name, default, low, high)
  local whole = math.tointeger(value)
  if not whole then fail.raise("misuse", "%s must be an integer, got %s", name, value) end
  return whole
end

return check
