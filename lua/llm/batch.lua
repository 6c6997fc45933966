-- Many prompts under one strategy, from Lua:
--
--     local batch = require "llm.batch"
--     for result in batch.run(model, "beam", {"one", "two"}, {beam = 2}) do print(result.text) end
--
-- Results have the keys of the result schema, nil where it has null; one that failed has `error`.

local llm = require "llm"
local common = require "llm.common"
local fail = require "llm.fail"
local job = require "llm.job"
local json = require "llm.json"
local options = require "llm.options"
local run = require "llm.run"
local sandbox = require "llm.sandbox"
local scripts = require "llm.scripts"
local sys = require "llm.sys"

local batch = {}

if not rawget(_G, "llm") then rawset(_G, "llm", llm) end -- scripts and samplers see it

local AHEAD = 4 -- times `jobs`: how far they may be ahead of one whose turn it is

-- ---- jobs, one after another ----

local Feed = {}
Feed.__index = Feed

-- Hands a result on: at once, or in order.
function Feed:give(number, result, work)
  if not self.plan.ordered then return self.plan.done(result, work) end
  self.held[number] = {result, work}
  while self.held[self.n_given + 1] do
    local entry = self.held[self.n_given + 1]
    self.n_given = self.n_given + 1
    self.held[self.n_given] = nil
    self.plan.done(entry[1], entry[2])
  end
end

-- What the prompt asks for as a job; or its failure is handed on.
function Feed:make(index, request, message)
  self.n_taken = self.n_taken + 1
  local work
  if request then
    work, message = self.plan.maker:try(request, index)
    if not work and self.plan.place then message = self.plan.place() .. message end
  end
  if not work and sys.interrupted() then return nil end -- it was cut, and is nobody's fault
  if not work then
    self:give(self.n_taken, job.refused(index, request and request.id, message))
    return nil
  end
  work.number = self.n_taken
  self.n_live = self.n_live + 1
  return work
end

-- The next job; nil when there are no more; false: not now, ask again after the next pass.
function Feed:next()
  local plan = self.plan
  while not self.is_over do
    if sys.interrupted() then return false end
    local is_ahead = plan.ordered and self.n_taken - self.n_given >= AHEAD * plan.jobs
    local is_dry = self.n_live > 0 and plan.is_ready and not plan.is_ready()
    if is_ahead or is_dry then return false end
    local index, request, message = plan.next()
    if not index then
      self.is_over, self.message = true, message
      return nil
    end
    local work = self:make(index, request, message)
    if work then return work end
  end
end

function Feed:done(work, result)
  self.n_live = self.n_live - 1
  result.n_late = nil
  self:give(work.number, result, work)
end

-- plan: {maker (bound to a model), jobs, ordered,
--   next = function() → the index of a prompt and its request, or the index, nil and what is wrong
--     with it; nil (and a message) when there are no more,
--   is_ready = function() → whether next would not wait (nil: it never waits),
--   place = function() → what goes before a message about the last prompt (nil: nothing),
--   done = function(result, job or nil), tick = function() (nil: none)}
-- Returns true when all are done, false after Ctrl-C; nil, message where the prompts broke off.
function batch.each(plan)
  local feed = setmetatable({plan = plan, n_taken = 0, n_given = 0, n_live = 0, held = {},
    is_over = false}, Feed)
  repeat
    local finished = run.jobs {jobs = plan.jobs, tick = plan.tick,
      next = function() return feed:next() end,
      done = function(work, result) feed:done(work, result) end}
    if not finished or sys.interrupted() then return false end
  until feed.is_over
  if feed.message then return nil, feed.message end
  return true
end

-- ---- from Lua ----

local added = {} -- folders in which scripts were found

-- strategy: a path or a bundled name; or {source = text, name = text}. Returns the script and the
-- table that its file returns; raises what is wrong with it.
function batch.load(strategy)
  local script, chunk, message
  if type(strategy) == "table" and type(strategy.source) == "string" then
    local name = tostring(strategy.name or "strategy")
    script = {source = strategy.source, chunk_name = "@" .. name, name = name}
  elseif type(strategy) == "string" then
    script, message = scripts.find(strategy)
    if not script then fail.raise("misuse", "%s", message) end
  else
    fail.raise("misuse", "strategy must be a path, a bundled name or {source = …}, got a %s",
      type(strategy))
  end
  if script.folder and not added[script.folder] then
    scripts.add_folder(script.folder)
    added[script.folder] = true
  end
  chunk, message = scripts.load(script, sandbox.environment(0))
  if not chunk then fail.raise("script", "%s", message) end
  local declared = chunk()
  if type(declared) ~= "table" or type(declared.decode) ~= "function" then
    fail.raise("misuse", "%s returns no table with a function decode", script.name)
  end
  return script, declared
end

local function read_model(name, value)
  if llm.type(value) == "llm.Model" then return value end
  local model, message = llm.load(value)
  if not model then fail.raise("input", "%s: %s", name, message) end
  return model
end

local OF_RUN = {stop_rule = true, jobs = true, ordered = true}

-- The names of the common options that batch.run takes.
function batch.options()
  local names = {}
  for _, spec in ipairs(common) do
    if spec.line or OF_RUN[spec.name] then names[#names + 1] = spec.name end
  end
  return names
end

local function known_options(declared)
  local names = batch.options()
  for name in pairs(declared or {}) do names[#names + 1] = name end
  table.sort(names)
  return table.concat(names, ", ")
end

-- The options as the command line would have them, typed or as text.
local function read_options(specs, declared, given)
  local opt, taken = assert(options.parse({}, specs)), {}
  for _, name in ipairs(batch.options()) do taken[name] = true end
  for name, value in pairs(given or {}) do
    local spec = specs[name]
    if type(spec) ~= "table" or spec.section ~= "script" and not taken[name] then
      fail.raise("misuse", "unknown option '%s'; known: %s", tostring(name),
        known_options(declared))
    end
    if spec.type == "model" then
      opt[name] = read_model(name, value)
    else
      local checked, message = options.check(spec, value)
      if checked == nil then fail.raise("misuse", "%s", message) end
      opt[name] = checked
    end
  end
  return options.seal(opt, specs, options.common_names())
end

local function is_list_of_ids(item)
  return item.prompt == nil and item.prompt_ids == nil and (#item > 0 or next(item) == nil)
end

local function read_item(item)
  if type(item) == "string" then return {prompt = item} end
  if type(item) ~= "table" then return nil, ("a prompt is a %s"):format(type(item)) end
  return is_list_of_ids(item) and {prompt_ids = item} or item
end

-- The prompts, a list or an iterator, as `next` of a plan.
local function read_prompts(prompts)
  local index, pull = 0, prompts
  if type(prompts) == "table" then
    pull = function() return prompts[index] end
  elseif type(prompts) ~= "function" then
    fail.raise("misuse", "prompts must be a list or a function, got a %s", type(prompts))
  end
  return function()
    index = index + 1
    local item = pull()
    if item == nil then return nil end
    return index, read_item(item)
  end
end

local function drop_nulls(t)
  for key, value in pairs(t) do
    if value == json.null then
      t[key] = nil
    elseif type(value) == "table" then
      drop_nulls(value)
    end
  end
  return t
end

local RESULT = {} -- tells a result from what an iterator of prompts yields

-- Runs plan in a coroutine: a result each time it is asked. What the iterator of the prompts yields
-- is for whoever runs the loop. Its caches are freed when the loop is left, or collected.
local function iterate(plan)
  local co = coroutine.create(function()
    plan.done = function(result) coroutine.yield(RESULT, drop_nulls(result)) end
    local ok, message = batch.each(plan)
    if ok == false then fail.raise("interrupted", "interrupted") end
    if not ok then fail.raise("input", "%s", message) end
  end)
  local function close()
    if coroutine.status(co) == "suspended" then coroutine.close(co) end
  end
  local closer = setmetatable({}, {__close = close, __gc = close})
  local function take(ok, tag, ...)
    if not ok then error(tag, 0) end
    if coroutine.status(co) == "dead" then return nil end
    if tag == RESULT then return (...) end
    if not coroutine.isyieldable() then
      close()
      fail.raise("misuse", "the iterator of the prompts yielded, but nobody waits for that")
    end
    return take(coroutine.resume(co, coroutine.yield(tag, ...)))
  end
  return function() return closer and take(coroutine.resume(co)) end, nil, nil, closer
end

-- Iterates over the results of the strategy (see batch.load) on the prompts: a list or an iterator
-- of texts, lists of ids, or tables {prompt =, id =, option = …}. opts: options of the strategy and
-- common ones, by name; among them `jobs` and `ordered`. The model is the caller's.
function batch.run(model, strategy, prompts, opts)
  if llm.type(model) ~= "llm.Model" then
    fail.raise("misuse", "model must be an llm.Model, got a %s", type(model))
  end
  local script, declared = batch.load(strategy)
  local specs, message = options.collect(declared.options)
  if not specs then fail.raise("misuse", "%s: %s", script.name, message) end
  local opt = read_options(specs, declared.options, opts)
  local maker, wrong = job.maker {script = script, specs = specs, opt = opt}
  if not maker then fail.raise("misuse", "%s", wrong) end
  local bound, refused = maker:bind(model)
  if not bound then fail.raise("misuse", "%s", refused) end
  return iterate {maker = maker, jobs = opt.jobs, ordered = opt.ordered,
    next = read_prompts(prompts)}
end

return batch
