-- Runs jobs side by side. Each is a coroutine; where it feeds a model it waits with a request, and
-- when all wait, one pass over the weights serves them all (continuous batching: Yu et al. 2022,
-- "Orca"). When pages run short the newest job is set aside: on a GPU its pages are
-- copied to the host's memory and back later, else they are recomputed.

local llm = require "llm"
local coroutines = require "llm.coroutines"
local requests = require "llm.requests"
local sys = require "llm.sys"

local scheduler = {}

local PAGE = 32         -- positions
local MAX_SECONDS = 600 -- of a job
local GRACE = 1         -- seconds between the answer `time` of emit and the error

-- ---- contexts: what belongs to one job while it runs ----

local Context = {}
Context.__index = Context

local current   -- the context that runs, or nil
local relieving -- what the run in work does for a call that finds no page and cannot wait

local function weak(mode) return setmetatable({}, {__mode = mode}) end

local function new_context(job, body, number)
  local limit = job.max_seconds or MAX_SECONDS
  local context = setmetatable({
    job = job, number = number, caches = weak "k", coroutines = weak "k",
    limit = limit, hard_limit = limit + math.min(GRACE, math.max(0.1, limit / 10)),
    used = 0,             -- s: its Lua, and its share of the passes
    resumed = 0,          -- clock when it was resumed last
    passes = 0, prefix_tokens = 0, recomputed_tokens = 0,
    first_pass = nil,     -- clock at the end of the first
    is_guarded = false,   -- the script runs, and may be ended
    request = nil, share = 0,
    refills = nil, whole = nil, wanted = nil, n_asides = 0, -- when it was set aside
  }, Context)
  context.co = coroutine.create(function() return body(job, context) end)
  return context
end

-- Seconds that it has used until now, while it runs.
function Context:spent()
  return self.used + sys.clock() - self.resumed
end

-- Sets the deadline of what runs: of no job, or not of its script, none.
local function arm(context)
  sys.deadline(context and context.is_guarded
    and sys.clock() + context.hard_limit - context:spent() or nil)
end

local function enter(context)
  local before = current
  current = context
  sys.scope(context and context.caches)
  arm(context)
  requests.job(context ~= nil)
  coroutines.own(context and context.coroutines)
  return before
end

-- Whether the job's time is over; an error follows a little later.
function Context:is_over()
  return self:spent() > self.limit
end

function Context:over_message()
  return ("the job's %g seconds are over (--max-seconds)"):format(self.limit)
end

-- The script may be ended by a deadline from now on, or no more. `seconds`: that many are left to
-- it in any case.
function Context:guard(on, seconds)
  self.is_guarded = on
  if seconds then self.hard_limit = math.max(self.hard_limit, self:spent() + seconds) end
  arm(self)
end

-- Whether one of its sequences has reached the end of the context.
function Context:is_full()
  for kv in pairs(self.caches) do
    local open, n = pcall(function() return #kv end)
    if open and n >= self.job.model.ctx then return true end
  end
  return false
end

-- Resumes it until it waits again or is dead. Returns whether it is dead, and its result.
function Context:resume(...)
  self.resumed = sys.clock()
  local before = enter(self)
  local ok, value = coroutines.resume(self.co, ...)
  enter(before)
  self.used = self:spent()
  self.request, self.share = nil, 0
  if coroutine.status(self.co) == "dead" then
    self:close()
    if not ok then error(value, 0) end
    return true, value
  end
  if not requests.is(value) then
    self:close()
    error("a job yielded what is no request", 0)
  end
  self.request = value
  return false
end

-- Nested coroutines, innermost first; then itself; then its caches.
function Context:close()
  local before = enter(self)
  requests.job(false)
  sys.deadline(sys.clock() + GRACE) -- of what the script does as its coroutines close
  coroutines.close_all(self.coroutines)
  if coroutine.status(self.co) == "suspended" then coroutine.close(self.co) end
  if self.request then requests.close(self.request) end
  for kv in pairs(self.caches) do kv:close() end
  enter(before)
end

-- ---- setting aside ----

-- Of a model that a script has closed: any number.
local function free_pages(model)
  local open, n = pcall(requests.pages, model)
  return open and n or math.huge
end

-- Gives back its pages. Returns whether there were any of this model.
function Context:set_aside(model)
  local free = free_pages(model)
  if self.refills then
    requests.close(self.request)
    self.request = self.wanted
  end
  requests.rewind(self.request)
  self.wanted, self.share, self.refills, self.whole = self.request, 0, {}, {}
  for kv in pairs(self.caches) do -- all but those that another job feeds
    local told, holds = pcall(requests.evict, kv)
    if told and holds then self.refills[#self.refills + 1] = kv end
  end
  table.sort(self.refills, function(a, b) return #a > #b end)
  local _, _, n_ids = requests.state(self.request)
  local freed = free_pages(model) - free
  self.model, self.n_asides = model, self.n_asides + 1
  self.need = freed + n_ids // PAGE + 2
  return freed > 0
end

-- The next request of one that was set aside: what makes its caches whole, then what it waited
-- with.
function Context:refill()
  if self.request ~= self.wanted then requests.close(self.request) end
  while self.refills[1] do
    local kv = self.refills[1]
    local ok, request = pcall(requests.refill, kv, self.whole)
    if not ok then
      self.failure = request
      break
    end
    self.request, self.share = request, 0
    if request then return end
    self.whole[#self.whole + 1] = kv
    table.remove(self.refills, 1)
  end
  self.request, self.refills, self.whole, self.wanted = self.wanted, nil, nil, nil
end

-- ---- a run ----

local Run = {}
Run.__index = Run

local function index_of(list, item)
  for i, other in ipairs(list) do
    if other == item then return i end
  end
end

-- Lists of contexts are in the order of their jobs.
local function insert(list, context)
  local at = 1
  while list[at] and list[at].number < context.number do at = at + 1 end
  table.insert(list, at, context)
end

function Run:advance(context, ...)
  local is_dead, result = context:resume(...)
  if not is_dead then return end
  self.is_tight = false
  table.remove(self.live, index_of(self.live, context))
  local cut = result.error and result.error.kind == "interrupted"
  local tell = cut and self.plan.cut or not cut and self.plan.done
  if tell then tell(context.job, result) end
end

function Run:put_aside(i)
  insert(self.aside, table.remove(self.live, i))
end

-- Pages for one that found none, of the newest job that has any; the newest may be itself. Returns
-- whether there is hope.
function Run:relieve(short, model)
  local _, missing = requests.state(short.request)
  local free = free_pages(model)
  self.n_missing = math.max(self.n_missing, missing)
  if free >= missing and short.tried ~= free then -- others have ended since
    short.tried = free
    return true
  end
  for i = #self.live, 2, -1 do
    local context = self.live[i]
    if context:set_aside(model) or context == short then
      self:put_aside(i)
      return true
    end
    context:refill() -- it had none, and takes part as before
  end
  return false
end

-- The same for the job that runs, and cannot wait.
function Run:relieve_current()
  for i = #self.live, 1, -1 do
    local context = self.live[i]
    if context ~= current and context.request then
      if context:set_aside(requests.model(context.request)) then
        self:put_aside(i)
        return true
      end
      context:refill()
    end
  end
  return false
end

-- Those that were set aside come first, the oldest of them first; not before the one for whom that
-- was done has its pages, and the more often it happened the more must be free. Returns whether all
-- are back.
function Run:readmit()
  if (self.is_short or self.is_tight) and #self.live > 0 then return false end
  while self.aside[1] do
    local context = self.aside[1]
    local spare = #self.live + context.n_asides * self.n_missing
    if #self.live > 0 and free_pages(context.model) < context.need + spare then return false end
    insert(self.live, table.remove(self.aside, 1))
    context:refill()
  end
  return true
end

-- No job may close the models of others.
function Run:hold(model)
  if self.held[model] then return end
  self.held[model] = true
  requests.hold(model, true)
end

function Run:admit()
  if not self:readmit() then return end
  while #self.live < self.plan.jobs do
    local job = self.waiting
    if not job and not self.is_exhausted then job = self.plan.next() end
    self.waiting, self.is_exhausted = nil, self.is_exhausted or job == nil
    if not job then return end
    if #self.live > 0 and free_pages(job.model) < #job.prompt // PAGE + 1 + #self.live then
      self.waiting = job
      return
    end
    self.number = self.number + 1
    self:hold(job.model)
    local context = new_context(job, self.body, self.number)
    self.live[#self.live + 1] = context
    self:advance(context)
  end
end

-- Who waits for which model: models in order, lists by model.
function Run:group()
  local models, groups = {}, {}
  for _, context in ipairs(self.live) do
    local model = not context.failure and requests.model(context.request)
    if model and not groups[model] then
      models[#models + 1], groups[model] = model, {}
      if self.plan.share ~= false and not self.shared[model] then
        self.shared[model] = pcall(requests.share, model, true)
      end
    end
    if model then table.insert(groups[model], context) end
  end
  return models, groups
end

-- The device has no memory for what some ask (a list, in order). While there are others the newest
-- of them is set aside until one has ended; the rest try again. Returns whether there were.
function Run:starve(list)
  local context = list[#list]
  if #self.live == 1 then return false end
  context:set_aside(requests.model(context.request))
  self:put_aside(index_of(self.live, context))
  self.is_tight = true
  return true
end

-- One pass of each model. Errors of a pass are those of all who shared it.
function Run:serve()
  local models, groups = self:group()
  local errors, starved = {}, {}
  for _, model in ipairs(models) do
    local list = {}
    for i, context in ipairs(groups[model]) do list[i] = context.request end
    local ok, wrong = requests.serve(list)
    local alone = not ok and #list > 1 and wrong.kind ~= "interrupted"
    for i = 1, ok and 0 or #list do
      local fits, why = false, wrong
      if alone then fits, why = requests.serve {list[i]} end -- only those fail that fail alone
      local context = groups[model][i]
      if not fits then errors[context] = why end
      if not fits and why.kind == "out_of_memory" then starved[#starved + 1] = context end
    end
  end
  if starved[1] and self:starve(starved) then
    for _, context in ipairs(starved) do errors[context] = nil end
  end
  return errors
end

-- What became of its request: "done", "failed" or "waiting", and the pages that it lacks.
function Run:account(context)
  local state, missing, n_ids, n_fed, n_reused, n_passes, share = requests.state(context.request)
  if not context.refills then context.used = context.used + share - context.share end
  context.share = share
  if self.plan.bar and n_ids > 1 then sys.bar(n_fed, n_ids) end
  if state == "waiting" then return state, missing end
  if context.refills then
    context.recomputed_tokens = context.recomputed_tokens + n_fed - n_reused
  else
    context.passes = context.passes + n_passes
    context.prefix_tokens = context.prefix_tokens + n_reused
    context.first_pass = context.first_pass or sys.clock()
  end
  return state, missing
end

-- Lets everyone whose request was served go on.
function Run:resume(errors)
  local short
  for _, context in ipairs(table.move(self.live, 1, #self.live, 1, {})) do
    if index_of(self.live, context) then
      local state, missing = self:account(context)
      local wrong = context.failure or errors[context]
      if wrong then
        context.failure = nil
        self:advance(context, wrong)
      elseif state == "waiting" then
        if context.is_guarded and context.used > context.hard_limit then
          self:advance(context, llm.error("time", context:over_message()))
        elseif missing > 0 and not short then
          short = context
        end
      elseif state == "done" and context.refills then
        context:refill()
      else
        self:advance(context)
      end
    end
  end
  return short
end

function Run:interrupt()
  local wrong = llm.error("interrupted", "interrupted")
  while self.live[1] do self:advance(self.live[1], wrong) end
end

function Run:loop()
  local tick = self.plan.tick or function() end
  while true do
    if sys.over() == "interrupted" then break end
    self:admit()
    if #self.live == 0 and #self.aside == 0 then return true end
    if #self.live > 0 then
      local short = self:resume(self:serve())
      self.is_short = short and index_of(self.live, short)
      if self.is_short and not self:relieve(short, requests.model(short.request)) then
        self:advance(short, requests.error(short.request)) -- alone it does not fit
      end
    end
    tick()
  end
  self:interrupt()
  return false
end

function Run:close()
  for _, list in ipairs {self.live, self.aside} do
    for _, context in ipairs(list) do context:close() end
  end
  for model in pairs(self.shared) do pcall(requests.share, model, false) end
  for model in pairs(self.held) do requests.hold(model, false) end
end

-- plan: {next = function() → a job (see llm.run), nil when there are no more, false when there is
--     none now: it is asked again after a pass,
--   done = function(job, result), called as each ends,
--   cut = function(job, result), of those that Ctrl-C ended (nil: nobody asks),
--   jobs = the most side by side, tick = function() after each pass (nil: none),
--   share = false: prompts do not take pages of earlier ones that begin alike,
--   bar = true: the prefill is shown}
-- body(job, context) runs a job, in a coroutine, and returns its result.
-- Returns true when all are done, false after Ctrl-C.
function scheduler.run(plan, body)
  local run = setmetatable({plan = plan, body = body, live = {}, aside = {}, shared = {}, held = {},
    number = 0, is_short = false, is_tight = false, n_missing = 1}, Run)
  local outer, before = current, relieving
  relieving = function() return run:relieve_current() end
  requests.relieve(relieving)
  local _ <close> = setmetatable({}, {__close = function()
    enter(outer)
    run:close()
    relieving = before
    requests.relieve(before)
  end})
  return run:loop()
end

return scheduler
