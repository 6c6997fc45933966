-- Coroutines under the scheduler. What a script's coroutine yields is for whoever resumed it; a
-- request of the engine goes on, through all of them, to the scheduler. So coroutine.resume, wrap
-- and close are replaced by functions that do the same and this; create notes whose job it is.

local requests = require "llm.requests"
local sys = require "llm.sys"

local create, resume, close = coroutine.create, coroutine.resume, coroutine.close
local yield, status, isyieldable = coroutine.yield, coroutine.status, coroutine.isyieldable

local coroutines = {resume = resume} -- the real one

local owned            -- of the current job: its coroutines, by number; weak
local n_created = 0

local function new(f)
  local co = create(f)
  n_created = n_created + 1
  if owned then owned[co] = n_created end
  return co
end

local function pass_on(co, ok, value, ...)
  if ok and type(value) == "userdata" and requests.is(value) then
    return pass_on(co, resume(co, yield(value)))
  end
  return ok, value, ...
end

local function restore(was, ...)
  requests.job(was)
  return ...
end

-- Where this coroutine cannot yield, what it resumes must not wait for the scheduler either.
local function resume_and_pass(co, ...)
  if isyieldable() then return pass_on(co, resume(co, ...)) end
  return restore(requests.job(false), resume(co, ...))
end

local GRACE = 1          -- s that __close handlers have, also when the job's time is over
local is_closing = false

-- What is closed runs to its end at once.
local function close_at_once(co)
  local was, outer, deadline = requests.job(false), is_closing, sys.deadline()
  local extended = deadline and not outer and math.max(deadline, sys.clock() + GRACE) or deadline
  is_closing = true
  sys.deadline(extended)
  local told, ok, value = restore(was, pcall(close, co))
  sys.deadline(deadline)
  is_closing = outer
  if not told then error(ok, 2) end
  return ok, value
end

local function unwrap(co, ok, ...)
  if ok then return ... end
  local value = ...
  if status(co) == "dead" then
    local closed, wrong = close_at_once(co)
    if not closed then value = wrong end
  end
  error(value, 2)
end

local function wrap(f)
  local co = new(f)
  return function(...) return unwrap(co, resume_and_pass(co, ...)) end
end

for name, f in pairs {create = new, resume = resume_and_pass, close = close_at_once, wrap = wrap} do
  rawset(coroutine, name, f)
end

-- Coroutines made from now on are noted in the table (weak keys), or in none. Returns the table
-- before.
function coroutines.own(list)
  local before = owned
  owned = list
  return before
end

-- Closes those that are suspended, the innermost (last made) first.
function coroutines.close_all(list)
  local order = {}
  for co in pairs(list) do order[#order + 1] = co end
  table.sort(order, function(a, b) return list[a] > list[b] end)
  for _, co in ipairs(order) do
    if status(co) == "suspended" then pcall(close_at_once, co) end
  end
end

return coroutines
