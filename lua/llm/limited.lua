-- Runs a function that makes something out of a user's file: it may take some seconds, no more.

local fail = require "llm.fail"
local guarded = require "llm.guarded"
local sys = require "llm.sys"

-- Returns the first two values of f(); or nil, message. seconds: nil for any time, such as where a
-- deadline stands already.
return function(seconds, f)
  if not seconds then return f() end
  local before = sys.deadline(sys.clock() + seconds)
  local ok, values, _, text = guarded(function() return table.pack(f()) end)
  local over = sys.over()
  sys.deadline(before)
  if ok then return values[1], values[2] end
  if over == "interrupted" then return nil, "interrupted" end
  if over == "time" then return nil, ("took more than %.3g s to be made"):format(seconds) end
  return nil, fail.line(text or values)
end
