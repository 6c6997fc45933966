-- Stop strings and stop rules.

local fail = require "llm.fail"

local stop = {}

-- The stop string that is complete first in text: its first and last byte. Of two that end at the
-- same byte the longer; so the answer is the same however the text arrives.
function stop.find(text, stops)
  local first, last
  for _, s in ipairs(stops) do
    local from, to = text:find(s, 1, true)
    if from and (not last or to < last or (to == last and from < first)) then
      first, last = from, to
    end
  end
  return first, last
end

-- The number of bytes at the end of text that may yet become a stop string.
function stop.pending(text, stops)
  local most = 0
  for _, s in ipairs(stops) do
    for n = math.min(#s - 1, #text), most + 1, -1 do
      if text:sub(-n) == s:sub(1, n) then
        most = n
        break
      end
    end
  end
  return most
end

-- A file that returns function(ids, text) → true to stop. Returns the function, or nil, message.
function stop.load_rule(path)
  local chunk, message = loadfile(path)
  if not chunk then return nil, message end
  local ok, rule = pcall(chunk)
  if not ok then return nil, ("stop rule %s: %s"):format(path, fail.line(rule)) end
  if type(rule) ~= "function" then
    return nil, ("stop rule %s returns a %s, not a function"):format(path, type(rule))
  end
  return function(ids, text)
    local ran, over = pcall(rule, table.move(ids, 1, #ids, 1, {}), text)
    if not ran and fail.is_error(over) then error(over, 0) end
    if not ran then fail.raise("script", "stop rule %s: %s", path, fail.line(over)) end
    return over
  end
end

return stop
