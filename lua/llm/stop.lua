-- Stop strings and stop rules.

local fail = require "llm.fail"
local limited = require "llm.limited"
local sandbox = require "llm.sandbox"
local sys = require "llm.sys"

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

local function read_source(path)
  local file, message = io.open(path, "rb")
  if not file then return nil, message end
  local source, wrong = file:read("a")
  file:close()
  if not source then return nil, wrong end
  return (source:gsub("^#[^\n]*", ""))
end

-- Runs the chunk of a rule anew, for some seconds at most (nil: any time). Returns the rule; or
-- nil, message.
local function make_rule(path, source, seed, seconds)
  local chunk, message = load(source, "@" .. path, "t", sandbox.environment(seed))
  if not chunk then return nil, message end
  local rule
  rule, message = limited(seconds, function()
    local ok, made = pcall(chunk)
    if not ok then return nil, fail.line(made) end
    return made
  end)
  if message then return nil, ("stop rule %s: %s"):format(path, message) end
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

-- A file that returns function(ids, text) → true to stop. Returns a function(seed) which makes such
-- a rule for one job: what its file keeps in locals is that job's own; and the hash of its source.
-- Or nil, message. seconds: what its file may take each time (nil: any time).
function stop.read_rule(path, seconds)
  local source, message = read_source(path)
  if not source then return nil, message end
  local rule
  rule, message = make_rule(path, source, 0, seconds)
  if not rule then return nil, message end
  return function(seed) return make_rule(path, source, seed, seconds) end, sys.hash(source)
end

return stop
