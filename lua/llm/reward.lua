-- What a text is worth to a search: the mean log-probability of its ids, or what a file of the
-- user's says.

local fail = require "llm.fail"
local sandbox = require "llm.sandbox"

-- path: a Lua file that returns function(ids, text) → number, of the new ids and their text; nil:
-- none. It runs anew for each job, whose seed is math.random's. Returns function(branch) → number
-- (see llm.branches).
return function(path, seed)
  if not path then
    return function(branch) return branch:mean() end
  end
  local chunk, message = loadfile(path, "t", sandbox.environment(seed))
  if not chunk then fail.raise("input", "%s", message) end
  local ok, judge = pcall(chunk)
  if not ok and fail.is_error(judge) then error(judge, 0) end
  if not ok then fail.raise("script", "%s: %s", path, fail.line(judge)) end
  if type(judge) ~= "function" then
    fail.raise("input", "%s returns a %s, not a function(ids, text)", path, type(judge))
  end
  return function(branch)
    local value = judge(branch:ids(), branch.text)
    if type(value) ~= "number" or value ~= value or math.abs(value) == math.huge then
      fail.raise("script", "%s: the value of a text must be a finite number, got %s", path,
        type(value) == "number" and tostring(value) or "a " .. type(value))
    end
    return value
  end
end
