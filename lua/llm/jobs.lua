-- Many prompts on the command line: --prompts, --out and what belongs to them.

local batch = require "llm.batch"
local ending = require "llm.ending"
local job = require "llm.job"
local json = require "llm.json"
local lines = require "llm.lines"
local loading = require "llm.loading"
local new_progress = require "llm.progress"
local options = require "llm.options"
local report = require "llm.report"
local results = require "llm.results"
local sys = require "llm.sys"

local jobs = {}

local STATE_VERSION = 1

-- ---- the command line ----

-- Whether it asks for many prompts.
function jobs.is_wanted(opt, given, specs)
  if opt.prompts then return true end
  for _, spec in ipairs(specs) do
    if spec.section == "batch" and given[spec.name] then
      ending.usage(options.flag(spec.name) .. " needs --prompts", specs)
    end
  end
  return false
end

local function check(opt, given, specs)
  for _, name in ipairs {"prompt", "file", "prompt_ids"} do
    if given[name] then
      ending.usage(("--prompts and %s: give one of them"):format(options.flag(name)), specs)
    end
  end
  for _, name in ipairs {"overwrite", "retry_errors"} do
    if opt[name] and not opt.out then
      ending.usage(options.flag(name) .. " needs --out", specs)
    end
  end
  if opt.out == "" then ending.usage("--out: '' is no path", specs) end
end

-- ---- shards ----

-- Variables that tell a process its rank, from 0, and how many there are.
local RANKS = {
  {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
  {"PMI_RANK", "PMI_SIZE"},
  {"SLURM_PROCID", "SLURM_NTASKS"},
}

-- In a batch script of Slurm that has not called srun, all prompts are this process's.
local function is_rank(name)
  return not name:find "^SLURM" or not os.getenv "SLURM_JOB_ID" or os.getenv "SLURM_STEP_ID"
end

-- {i, n, from}: this process has the prompts i, i + n, …; or nil: it has all; or nil, message.
function jobs.shard(text)
  if text then
    local i, n = text:match "^%s*(%d+)%s*/%s*(%d+)%s*$"
    i, n = math.tointeger(tonumber(i)), math.tointeger(tonumber(n))
    if not i or not n or i < 1 or i > n then
      return nil, ("--shard: '%s' is not I/N with I from 1 to N"):format(text)
    end
    return n > 1 and {i = i, n = n, from = "--shard"} or nil
  end
  for _, names in ipairs(RANKS) do
    local rank = math.tointeger(tonumber(os.getenv(names[1])))
    local size = math.tointeger(tonumber(os.getenv(names[2])))
    if rank and size and size > 1 and rank >= 0 and rank < size and is_rank(names[1]) then
      return {i = rank + 1, n = size, from = names[1]}
    end
  end
end

-- "x.jsonl" → "x.2-of-4.jsonl"
function jobs.shard_path(path, shard)
  local stem, extension = path:match "^(.*[^/])(%.[^./]+)$"
  return ("%s.%d-of-%d%s"):format(stem or path, shard.i, shard.n, extension or "")
end

local function is_own(index, shard)
  return not shard or (index - 1) % shard.n == shard.i - 1
end

-- ---- what makes the results ----

local function describe_option(spec, value, maker)
  if spec.name == "stop_rule" then return maker.rule_hash end
  if spec.type == "model" then return value.hash end
  if spec.type == "file" then return (sys.survey(value)) end
  return value
end

-- Two runs with the same state make the same lines.
local function make_state(run)
  local fixed = {}
  for _, spec in ipairs(run.specs) do
    local value = run.opt[spec.name]
    if (spec.fixed or spec.section == "script") and value ~= nil then
      fixed[spec.name] = describe_option(spec, value, run.maker)
    end
  end
  return {version = STATE_VERSION, llmlua = sys.version, model = run.model.hash,
    device = run.model.device, script = sys.hash(run.script.source), input = run.input_hash,
    prompts = run.n_prompts, options = fixed,
    shard = run.shard and ("%d/%d"):format(run.shard.i, run.shard.n) or "1/1"}
end

-- ---- the run ----

local function open_prompts(run)
  local opt, message = run.opt
  run.prompts, message = lines.prompts(opt.prompts, opt.prompts_format)
  if not run.prompts then
    if sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
    ending.exit(ending.FAILURE, "%s", message)
  end
  run.input_hash = "standard input"
  if opt.prompts ~= "-" and sys.path_kind(opt.prompts) == "file" then
    run.input_hash, run.n_prompts = sys.survey(opt.prompts)
    if not run.input_hash then
      if sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
      ending.exit(ending.FAILURE, "%s: %s", opt.prompts, run.n_prompts)
    end
  end
  local n, shard = run.n_prompts, run.shard
  run.total = n and shard and (n - shard.i) // shard.n + 1 or n
end

-- None of the files that come to be with the results may be one that the run reads.
local function check_inputs(path, opt)
  local real, files = results.files(path)
  if not real then ending.exit(ending.FAILURE, "%s", files) end
  local inputs = {["the prompts"] = opt.prompts, ["the model"] = opt.model,
    ["the stop rule"] = opt.stop_rule}
  for what, input in pairs(inputs) do
    for _, file in ipairs(sys.path_kind(real) == "other" and {} or files) do
      if input ~= "-" and sys.same_file(file, input) then
        ending.exit(ending.FAILURE, "--out %s would overwrite %s%s", path, what,
          file ~= real and (" (%s)"):format(file) or "")
      end
    end
  end
end

local function open_results(run)
  local opt, message = run.opt
  if not opt.out then
    run.done, run.n_failed = results.set(), 0
    return
  end
  local path = run.shard and jobs.shard_path(opt.out, run.shard) or opt.out
  check_inputs(path, opt)
  run.out, message = results.open {path = path, state = make_state(run), overwrite = opt.overwrite,
    retry_errors = opt.retry_errors, is_once = run.n_prompts == nil, n_prompts = run.n_prompts}
  if not run.out then
    if sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
    ending.exit(ending.FAILURE, "%s", message)
  end
  run.done, run.n_failed = run.out.done, run.out.n_failed
  if opt.quiet then return end
  if run.done.n > 0 then
    ending.say("%s holds %d of %d results", path, run.done.n, run.total or run.done.n)
  end
  if run.out.n_dropped > 0 then ending.say("%d failed ones are tried again", run.out.n_dropped) end
end

local function write(run, result)
  local line = json.encode(result)
  if run.out then
    local ok, message = run.out:append(line)
    if not ok and not run.out.side and sys.interrupted() then
      ending.exit(ending.INTERRUPTED, "interrupted: nobody reads %s", run.out.path)
    end
    if not ok then
      ending.exit(ending.FAILURE, "cannot write: %s (%s)", message,
        run.n_prompts and "the same command continues" or "what is there is whole")
    end
  else
    ending.put(line .. "\n")
  end
end

-- The next prompt that is this process's and not done.
local function next_prompt(run)
  local prompts = run.prompts
  while not sys.interrupted() do
    local index = prompts.index + 1
    if is_own(index, run.shard) and not run.done:has(index) then return prompts:next() end
    local more, message = prompts:skip()
    if not more then return nil, nil, message end
  end
end

local function note_sampler(run, work)
  if not work then return end
  run.is_sampled = run.is_sampled or work.n_stages == 0 or work.opt.sampler.asked
  run.chain_text = work.chain_text
end

-- A device that has failed fails whatever follows: that is no result of a prompt, and the run ends.
local function is_lost(run, result)
  if not result.error or result.error.kind ~= "device" then return false end
  run.lost = run.lost or result.error.message
  return true
end

local function make_plan(run)
  local opt = run.opt
  return {maker = run.maker, jobs = opt.jobs, ordered = opt.ordered,
    next = function()
      if run.lost then return nil end
      return next_prompt(run)
    end,
    is_ready = not run.n_prompts and function() return run.prompts:is_ready() end or nil,
    place = function() return run.prompts:place() end,
    tick = function() run.progress:tick() end,
    done = function(result, work)
      if is_lost(run, result) then return end
      write(run, result)
      if result.error then run.n_failed = run.n_failed + 1 end
      run.progress:add(result)
      note_sampler(run, work)
      run.progress:tick()
    end}
end

-- Says how it ended; returns the exit status.
local function finish(run, finished, message)
  local opt, progress = run.opt, run.progress
  progress:clear()
  if finished == nil then ending.exit(ending.FAILURE, "%s", message) end
  if run.lost or not finished then
    local more = run.out and run.out.side and run.n_prompts and "; the same command continues" or ""
    ending.exit(run.lost and ending.FAILURE or ending.INTERRUPTED, "%s: %d%s done%s",
      run.lost or "interrupted", progress.n_done, run.total and " of " .. run.total or "", more)
  end
  if run.out and opt.ordered then
    local ok, wrong = run.out:sort()
    if not ok then ending.exit(ending.FAILURE, "cannot write: %s", wrong) end
  end
  if not opt.quiet then
    if progress.n_done == progress.n_before and progress.n_done > 0 then
      ending.say("all %d are done already", progress.n_done)
    else
      ending.say("%s", progress:figures())
    end
    if not run.is_sampled and run.chain_text then
      ending.say("warning: this strategy does not use the sampler chain (%s)", run.chain_text)
    end
  end
  if opt.verbose then io.stderr:write(report.memory(run.model), "\n") end
  if run.n_failed == 0 then return ending.OK end
  ending.exit(ending.SOME_FAILED, "%d of %d jobs failed", run.n_failed, progress.n_done)
end

-- Returns the exit status.
function jobs.run(script, opt, given, specs)
  check(opt, given, specs)
  local run, message, is_file, bound = {script = script, opt = opt, specs = specs}
  run.shard, message = jobs.shard(opt.shard)
  if message then ending.usage(message, specs) end
  if opt.explain then
    run.explain = function(index) return report.explainer(("prompt %d, "):format(index)) end
  end
  run.maker, message, is_file = job.maker(run)
  if not run.maker and sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  if not run.maker and is_file then ending.exit(ending.FAILURE, "%s", message) end
  if not run.maker then ending.usage(message, specs) end
  open_prompts(run)
  run.model = loading.models(opt, specs)
  sys.progress(false)
  bound, message = run.maker:bind(run.model)
  if not bound and sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  if not bound then ending.exit(ending.USAGE, "%s", message) end
  open_results(run)
  if run.shard and not opt.quiet then
    ending.say("shard %d of %d (%s)", run.shard.i, run.shard.n, run.shard.from)
  end
  local draw = not opt.quiet and (run.out ~= nil or not sys.isatty(1))
  run.progress = new_progress(run.total, run.done.n, draw)
  local finished
  finished, message = batch.each(make_plan(run))
  return finish(run, finished, message)
end

return jobs
