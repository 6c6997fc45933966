-- Runs a function in a coroutine of its own, which Ctrl-C ends wherever it is, and a deadline, if
-- one stands.

local llm = require "llm"
local fail = require "llm.fail"
local sys = require "llm.sys"

-- What an error value says; its __tostring is the script's and may do anything.
local function describe(value)
  if type(value) ~= "table" and type(value) ~= "userdata" then return fail.describe(value) end
  local co = coroutine.create(fail.describe)
  sys.guard(co)
  local ok, text = coroutine.resume(co, value)
  return ok and text or "an error that has no text"
end

-- Returns true and the first value of f(…); or false, the error, its traceback and what it says. A
-- yield that nobody waits for is an error.
return function(f, ...)
  local co = coroutine.create(f)
  sys.guard(co)
  local ok, value = coroutine.resume(co, ...)
  local yielded = coroutine.status(co) == "suspended"
  local traceback, text
  if not ok then
    text = describe(value)
    traceback = debug.traceback(co, text)
  end
  coroutine.close(co) -- still guarded: what closes after Ctrl-C must end too
  sys.unguard(co)
  if yielded then
    return false, llm.error("misuse", "the script yielded, but nobody waits for that (use emit)")
  end
  return ok, value, traceback, text
end
