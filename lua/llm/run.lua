-- One job: a strategy, a prompt, options; out comes a result with the keys of the result schema. It
-- knows nothing of command lines, files or terminals.

local llm = require "llm"
local chain = require "llm.chain"
local check = require "llm.check"
local fail = require "llm.fail"
local guarded = require "llm.guarded"
local json = require "llm.json"
local logprobs = require "llm.logprobs"
local new_output = require "llm.output"
local requests = require "llm.requests"
local sandbox = require "llm.sandbox"
local scheduler = require "llm.scheduler"
local sys = require "llm.sys"

local run = {}

-- ---- the strategy ----

-- Runs the chunk of a script anew in a fresh environment and returns its table.
local function open_strategy(job)
  local script, env = job.script, sandbox.environment(job.opt.seed)
  local chunk, message = load(script.source, script.chunk_name, "t", env)
  if not chunk then error(message, 0) end
  local strategy = chunk()
  if type(strategy) ~= "table" or type(strategy.decode) ~= "function" then
    fail.raise("misuse", "the script returns no table with a function decode")
  end
  return strategy.decode
end

local function copy(list)
  local twin = setmetatable({}, getmetatable(list))
  for key, value in next, list do rawset(twin, key, value) end
  return twin
end

-- ---- what it returned ----

local KNOWN = {ids = true, score = true, finish = true}
local FINISH = {eos = true, length = true, stop = true, time = true}

local function check_entry(i, entry)
  if type(entry) ~= "table" or type(entry.ids) ~= "table" then
    fail.raise("misuse", "decode returns a list of {ids = …, score = …}; entry %d has no ids", i)
  end
  for key in pairs(entry) do
    if not KNOWN[key] then
      fail.raise("misuse", "decode returns unknown key '%s' in entry %d; known: finish, ids, score",
        tostring(key), i)
    end
  end
  if entry.score ~= nil and type(entry.score) ~= "number" then
    fail.raise("misuse", "decode returns a score that is a %s in entry %d", type(entry.score), i)
  end
  if entry.finish ~= nil and not FINISH[entry.finish] then
    fail.raise("misuse", "decode returns an unknown finish in entry %d; known: eos, length, stop, "
      .. "time", i)
  end
end

-- The list that decode returned as finished outputs, best first. `finish`: of texts that do not
-- say how they ended.
local function read_returned(job, list, finish)
  if type(list) ~= "table" then
    fail.raise("misuse", "decode returns a %s; it emits ids and returns nothing, or returns a list "
      .. "of {ids = …, score = …}", type(list))
  end
  if list.ids ~= nil or #list == 0 then
    fail.raise("misuse", "decode returns %s, not a list of {ids = …, score = …}",
      list.ids and "one entry" or "an empty table")
  end
  local outputs = {}
  for i, entry in ipairs(list) do
    check_entry(i, entry)
    local output = new_output(job, llm.seq(job.prompt))
    for _, id in ipairs(entry.ids) do
      if output:add(id) then break end
    end
    output:finish(entry.finish or finish)
    output.given_score = entry.score
    outputs[i] = output
  end
  return outputs
end

-- Runs what is the script's to its end, with a prompt and options that are its own to change: nil,
-- or the outputs of what it returned. `over`: why it had to end, or nil.
local function decode(job, context, output, emit)
  context:guard(true)
  local ok, outputs, traceback, text = guarded(function()
    job.given = copy(job.opt)
    local list = open_strategy(job)(job.model, copy(job.prompt), job.given, emit)
    if list == nil or output.reason then return nil end
    if #output.ids > 0 then fail.raise("misuse", "decode both emits ids and returns a list") end
    return read_returned(job, list, "length")
  end)
  local over = sys.over()
  context:guard(false)
  return ok, outputs, traceback, text, over
end

-- Calls `partial` of the strategy's options: the list so far, of a job that was ended. nil if there
-- is none.
local function read_partial(job, context, finish)
  local partial = job.given and rawget(job.given, "partial")
  if not partial then return nil end
  context:guard(true, 1)
  local call = sys.over() and pcall or guarded -- after Ctrl-C the guard would end it at once
  local ok, outputs = call(function()
    local list = partial()
    return list and #list > 0 and read_returned(job, list, finish)
  end)
  context:guard(false)
  return ok and outputs or nil
end

-- ---- the result ----

local function finish_output(job, output, failed)
  local entry = {text = output:text(), ids = json.list(output.ids),
    finish = output.reason or json.null}
  local score = output.given_score or output:score_sum()
  if job.opt.logprobs and not failed then
    local entries = output.logprobs
    if output.n_scored < #output.ids then
      entries = logprobs.compute(job, output.ids)
    end
    entry.logprobs = logprobs.report(job.model, entries)
    if job.opt.processed_logprobs then
      entry.processed_logprobs = logprobs.report(job.model, entries, "processed")
    end
    score = score or logprobs.sum(entries)
  end
  entry.score = score or json.null
  return entry
end

local function rate(n, seconds)
  return n > 0 and seconds > 0 and n / seconds or json.null
end

-- Times of one job. Prefill ends with the first pass. The first token is there with the first emit;
-- with the first pass where the strategy returns its texts at the end. Decoding begins with the
-- first token; with the first pass where no pass follows the first emit: all passes made the text.
local function make_timings(job, context, clock, n_output)
  local prefilled = context.first_pass
  local first = clock.emit or prefilled
  local begin = first
  if clock.emit and clock.passes == context.passes then begin = prefilled end
  return {
    load_s = job.model.load_s or json.null,
    ttft_s = first and first - clock.start or json.null,
    prefill_tps = prefilled and rate(#job.prompt, prefilled - clock.start) or json.null,
    decode_tps = begin and rate(n_output - 1, clock.finish - begin) or json.null,
    prefix_tokens = context.prefix_tokens,
    recomputed_tokens = context.recomputed_tokens,
    passes = context.passes,
  }
end

local function make_result(job, context, outputs, clock, failed)
  local result = {
    index = job.index or 1, id = job.id or json.null, seed = job.opt.seed,
    prompt_ids = json.list(job.prompt), outputs = json.list {},
  }
  for i, output in ipairs(outputs) do result.outputs[i] = finish_output(job, output, failed) end
  local best = result.outputs[1]
  for key, value in pairs(best or {}) do result[key] = value end
  local n_output = best and #best.ids or 0
  result.counts = {prompt = #job.prompt, output = n_output}
  result.timings = make_timings(job, context, clock, n_output)
  return result
end

-- What a job is to the scheduler.
local function body(job, context)
  local own = llm.seq(job.prompt)
  local output = new_output(job, own, job.sink)
  local clock = {start = sys.clock()}
  local pending -- {late =, info =}: an id that is on its way from the device
  local function add(id, info)
    local n = #output.ids
    output:add(id, info)
    if not clock.emit then clock.emit, clock.passes = sys.clock(), context.passes end
    if #output.ids > n then own:push(output.ids[n + 1]) end
  end
  local function settle()
    if not pending then return end
    local late, info = pending.late, pending.info
    pending = nil
    add(requests.late_id(late), info)
  end
  -- The last id that there may be is waited for: nothing follows it.
  local function may_wait(id, info)
    return check.is_tensor(id) and #output.ids + 1 < job.opt.max_tokens
      and not (type(info) == "table" and info.logits)
  end
  local function emit(id, info)
    if output.reason then return output:add(id, info) end
    settle()
    if not output.reason and context:is_over() then output:finish("time") end
    if output.reason then return output.reason end
    local late = may_wait(id, info) and requests.late(id)
    if late then
      pending = {late = late, info = info}
    else
      add(id, info)
    end
    return output.reason
  end
  job.opt.sampler = chain.sampler(job.stages, own, job.opt.seed, settle)
  local ok, value, traceback, text, over = true, nil, nil, nil, nil
  if job.opt.max_tokens == 0 then
    output:finish("length")
  else
    ok, value, traceback, text, over = decode(job, context, output, emit)
    local settled, wrong = pcall(settle)
    if ok and not settled then ok, value = false, wrong end
  end
  clock.finish = sys.clock()

  if ok or output.reason then -- what an ended text's strategy does afterwards is no concern
    output:finish(context:is_full() and "length" or "stop")
    local result = make_result(job, context, ok and value or {output}, clock)
    result.n_late = output.n_late
    return result
  end

  local kind, message, trace = fail.read(job.opt.sampler.blame(value), traceback, text)
  if over == "interrupted" then kind, message, trace = "interrupted", "interrupted", nil end
  if over == "time" then
    kind, message = "time", context:over_message()
  end
  local finish = (kind == "interrupted" or kind == "time") and kind or nil
  output:finish(finish)
  local outputs = #output.ids == 0 and read_partial(job, context, finish) or {output}
  local result = make_result(job, context, outputs, clock, true)
  result.error = {kind = kind, message = message, traceback = trace or json.null}
  return result
end

-- job: {model, script = {source, chunk_name}, prompt (ids), opt (checked values; max_tokens as
-- the context allows), stages (chain.build's function), rule, sink (function(bytes) or nil),
-- index, id, max_seconds}. Returns the result; where the job failed it has `error` {kind, message,
-- traceback}, and what was emitted until then.
function run.job(job)
  local pending, result = job, nil
  local function keep(_, value) result = value end
  local function take()
    local taken = pending
    pending = nil
    return taken
  end
  scheduler.run({next = take, done = keep, cut = keep, jobs = 1, share = false, bar = true}, body)
  return result
end

-- Runs many: plan as scheduler.run takes it. Returns false after Ctrl-C, else true.
function run.jobs(plan)
  return scheduler.run(plan, body)
end

return run
