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

-- Any error value as kind, message, traceback. What llm did not raise is of kind script; `text`:
-- what it says, if that is known.
function fail.read(value, traceback, text)
  if fail.is_error(value) then
    return value.kind, value.message, value.traceback or traceback
  end
  return "script", text or fail.describe(value), traceback
end

local function describe(value)
  if type(value) == "string" or fail.is_error(value) then return tostring(value) end
  local meta = debug.getmetatable(value)
  if type(meta) == "table" and meta.__tostring then
    local told, text = pcall(tostring, value)
    return told and text or "an error that has no text"
  end
  if type(value) ~= "table" then
    return ("error raised with a %s, not a text: %s"):format(type(value), tostring(value))
  end
  local parts = {}
  for key, item in pairs(value) do
    local name = math.type(key) == "integer" and "" or tostring(key) .. " = "
    parts[#parts + 1] = name .. tostring(item)
    if #parts == 8 then break end
  end
  return ("error raised with a table, not a text: {%s}"):format(table.concat(parts, ", "))
end

-- What an error value says, whatever it is.
function fail.describe(value)
  local told, text = pcall(describe, value)
  return told and text or "an error that has no text"
end

-- The first position of the user's own code in tracebacks ("sure.lua:7"), or nil.
function fail.place(...)
  for i = 1, select("#", ...) do
    local traceback = select(i, ...)
    for line in (type(traceback) == "string" and traceback or ""):gmatch "[^\n]+" do
      local place = line:match "^%s+(.-:%d+): in "
      if place and not place:find "^lua/llm/" then return place end
    end
  end
end

-- The message of an error in one line.
function fail.line(value)
  return (fail.describe(value):gsub("%s*\n%s*", "; "))
end

return fail
