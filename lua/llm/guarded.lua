-- Runs a function in a coroutine of its own, which Ctrl-C ends wherever it is.

local llm = require "llm"
local fail = require "llm.fail"
local sys = require "llm.sys"

-- Returns true and the first value of f(…); or false, the error and its traceback. A yield that
-- nobody waits for is an error.
return function(f, ...)
  local co = coroutine.create(f)
  sys.guard(co)
  local ok, value = coroutine.resume(co, ...)
  local yielded = coroutine.status(co) == "suspended"
  local traceback
  if not ok then
    traceback = debug.traceback(co, fail.describe(value))
  end
  coroutine.close(co) -- still guarded: what closes after Ctrl-C must end too
  sys.unguard(co)
  if yielded then
    return false, llm.error("misuse", "the script yielded, but nobody waits for that (use emit)")
  end
  return ok, value, traceback
end
