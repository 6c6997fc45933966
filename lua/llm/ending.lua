-- How the program ends and what it says: an exit status and a message travel as an error to the
-- host; text goes to standard output, words to standard error.

local fail = require "llm.fail"
local options = require "llm.options"
local sys = require "llm.sys"

local ending = {OK = 0, FAILURE = 1, USAGE = 2, SOME_FAILED = 3, INTERRUPTED = 130}

local Exit = {}

function ending.is_exit(value)
  return getmetatable(value) == Exit
end

local function raise(fields)
  error(setmetatable(fields, Exit), 0)
end

-- Ends with this status; `format` and what follows as string.format, nil: nothing to say.
function ending.exit(status, format, ...)
  raise {status = status, message = format and format:format(...)}
end

-- specs: known options are listed after an unknown one, and --help is named after all else.
function ending.usage(message, specs)
  local more = ""
  if specs then
    more = message:find "^unknown option" and "\n" .. options.known(specs)
      or " (--help lists the options)"
  end
  ending.exit(ending.USAGE, "%s%s", message, more)
end

function ending.say(format, ...)
  io.stderr:write("llmlua: ", format:format(...), "\n")
end

-- Bytes to standard output, unbuffered. A reader that has gone ends the program quietly.
function ending.put(bytes)
  local ok, message, kind = sys.write(1, bytes)
  if ok then return end
  if kind == "pipe" then ending.exit(ending.OK) end
  ending.exit(ending.FAILURE, "cannot write to standard output: %s", message)
end

-- No fault of a line.
local NO_PLACE = {interrupted = true, time = true, cache_full = true, input = true}

-- Ends with a failure of this kind: its message and, of llm's own errors, where in the script it
-- was raised; for all others the traceback.
function ending.fail_as(kind, message, traceback)
  local text = message
  if kind == "script" and traceback then
    text = traceback:sub(1, #message) == message and traceback or message .. "\n" .. traceback
  elseif traceback and not NO_PLACE[kind] then
    local place = fail.place(traceback)
    text = place and ("%s\n  at %s"):format(message, place) or message
  end
  raise {status = ending.FAILURE, message = text, kind = kind, plain = message}
end

-- Ends with what a script raised.
function ending.fail_script(value, traceback)
  if ending.is_exit(value) then error(value, 0) end
  if sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  ending.fail_as(fail.read(value, traceback))
end

-- An error value that xpcall may hand on: an exit, an llm.Error, or a text.
function ending.keep(value)
  if ending.is_exit(value) or fail.is_error(value) then return value end
  return fail.describe(value)
end

-- Whatever was raised as kind and message for the line of --json.
function ending.read(value)
  if not ending.is_exit(value) then return fail.read(value) end
  local kind = value.kind or value.status == ending.USAGE and "misuse"
    or value.status == ending.INTERRUPTED and "interrupted" or "input"
  return kind, value.plain or value.message
end

return ending
