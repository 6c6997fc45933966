-- Raising llm.Error from Lua, and reading whatever an error value says.

local llm = require "llm"

local fail = {}

-- Raises an llm.Error; `format` and what follows as string.format.
function fail.raise(kind, format, ...)
  error(llm.error(kind, format:format(...)), 0)
end

function fail.is_error(value)
  return llm.type(value) == "llm.Error"
end

-- Any error value as kind, message, traceback. What llm did not raise is of kind script.
function fail.read(value, traceback)
  if fail.is_error(value) then
    return value.kind, value.message, traceback or value.traceback
  end
  return "script", tostring(value), traceback
end

-- The message of an error in one line.
function fail.line(value)
  return (tostring(value):gsub("%s*\n%s*", "; "))
end

return fail
