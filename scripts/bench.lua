-- How fast this machine runs a model: prefill and decode tokens/s for several batch sizes, and
-- what share that is of the memory roof: the bytes of weights and of keys and values that a step
-- must read × steps/s ÷ the best read bandwidth found in the same run (Williams et al. 2009,
-- "Roofline"). The best of `repeats` measurements counts, and of the bandwidth the best so far. A
-- row is printed when it is measured, so that an interruption loses no other. Of jobs, each a
-- script of its own under the scheduler, it also says which share of a step is Lua's. Of beams,
-- which share a prompt, --against tells what its length costs: both steps are measured in turns. Of
-- a GPU the roof is what it reads of its own memory, prefill is held against its peak in products,
-- and it is told what a step asks of it: launches, waits, bytes each way. A profile tells where the
-- time of a step and of a prefill goes. Strategies that promise greedy's text sooner are measured
-- against it instead, in turns.
local chain = require "llm.chain"
local json = require "llm.json"
local options = require "llm.options"
local profile = require "llm.profile"
local race = require "llm.race"
local run = require "llm.run"
local sys = require "llm.sys"

local ORDER = {"model", "device", "threads", "bandwidth", "peak", "runs", "error", "kind", "rows",
  "context", "prefill_tps", "prefill_peak", "step_ms", "decode_tps", "bytes", "kv_bytes", "roof",
  "lua", "launches", "syncs", "bytes_up", "bytes_down", "what", "profile", "name", "layer",
  "format", "ms", "share", "wait_ms", "mb", "gbps", "gops", "reached",
  "strategies", "strategy", "tokens", "tps", "ratio", "same"}

local ASKED = {"launches", "syncs", "bytes_up", "bytes_down"} -- of a GPU, counted by llm.stats
local WARM = 2 -- steps before the clock starts: a GPU's are captured by then
local PAGE = 32 -- positions

-- Ids that are not the same over and over.
local function make_ids(model, n, seed)
  local ids = {}
  for i = 1, n do ids[i] = (i * 7919 + seed * 104729) % model.vocab_size end
  return ids
end

local function seconds(f)
  local start = sys.clock()
  f()
  return sys.clock() - start
end

-- Caches with a context each ("batch"), or forks of one ("beams"), and the seconds of the prefill.
local function prefill(model, kind, n_rows, context)
  local kvs, ids = {}, {}
  for i = 1, kind == "beams" and 1 or n_rows do
    kvs[i], ids[i] = model:cache(), make_ids(model, context, i)
  end
  local logits
  local took = seconds(function()
    logits = model:forward(kvs, ids)
    logits:argmax():tolist()
  end)
  if kind == "beams" then
    local rows = {}
    for i = 1, n_rows do rows[i] = 1 end
    kvs, logits = llm.reorder(kvs, rows), logits:rows(rows)
  end
  return kvs, logits, took
end

-- scripts/greedy.lua, but that no token ends it.
local GREEDY = [[return {decode = function(model, prompt, opt, emit)
  local kv = model:cache()
  local logits, other = model:forward(kv, prompt), 0
  while model:is_eog(other) do other = other + 1 end
  for _ = 1, opt.max_tokens do
    local id = opt.sampler.filter(logits):argmax():item()
    if emit(model:is_eog(id) and other or id) then return end
    logits = model:forward(kv, id)
  end
end}]]

-- As many jobs side by side. Counted are the steps from when all decode until the first ends.
local function measure_jobs(model, r, opt)
  local specs, n_started, n_rows, first, last = options.collect(nil), 0, nil, nil, nil
  local plan = {jobs = r.rows, share = false, done = function() end}
  function plan.next()
    n_started = n_started + 1
    if n_started > r.rows then return nil end
    local values = options.parse({}, specs)
    values.max_tokens, values.max_rows = opt.steps, model.max_rows
    return {model = model, prompt = make_ids(model, r.context, n_started),
      script = {source = GREEDY, chunk_name = "@greedy"}, opt = options.seal(values, specs),
      stages = chain.build({}, model)}
  end
  function plan.tick()
    local stats = llm.stats()
    local now = {t = sys.clock(), passes = stats.passes, lua = stats.lua_s, step = stats.step_s}
    if n_rows and stats.forward_rows - n_rows == r.rows then first, last = first or now, now end
    n_rows = stats.forward_rows
  end
  run.jobs(plan)
  if not last or last.passes == first.passes then
    error(llm.error("input", ("%d steps are too few to time %d jobs"):format(opt.steps, r.rows)))
  end
  local step_s = (last.t - first.t) / (last.passes - first.passes)
  if step_s < (r.step_s or math.huge) then
    r.step_s, r.lua = step_s, (last.lua - first.lua) / (last.step - first.step)
  end
end

-- One measurement of a run {kind, rows, context}: notes the best of prefill_tps and step_s.
local function measure(model, r, opt)
  if r.kind == "jobs" then return measure_jobs(model, r, opt) end
  local kvs, logits, took = prefill(model, r.kind, r.rows, r.context)
  local n_fed = r.kind == "beams" and r.context or r.context * r.rows
  r.prefill_tps = math.max(r.prefill_tps or 0, n_fed / took)
  for _ = 1, WARM do logits = model:forward(kvs, logits:argmax()) end
  logits:argmax():tolist()
  local before = llm.stats()
  took = seconds(function()
    for _ = 1, opt.steps do logits = model:forward(kvs, logits:argmax()) end
    logits:argmax():tolist()
  end)
  r.step_s = math.min(r.step_s or math.huge, took / opt.steps)
  local after = llm.stats()
  for _, name in ipairs(ASKED) do r[name] = (after[name] - before[name]) / opt.steps end
  for _, kv in ipairs(kvs) do kv:close() end
end

-- ---- the profile ----

-- Measures a run {kind, rows} once more under a profile; the best of `repeats`. Returns a list of
-- {what, profile}: the prefill and a step, or of jobs all passes together.
local function profile_run(model, r, opt, roofs)
  local function best(f, n, what)
    local found
    for _ = 1, opt.repeats do
      local measured = f()
      if not found or measured.seconds < found.seconds then found = measured end
    end
    n = n or found.passes
    return {what = what, ms = 1000 * found.seconds / n,
      profile = profile.lines(model, found, n, roofs, opt.profile_layers)}
  end
  if r.kind == "jobs" then
    return {best(function()
      return profile.measure(model, function() measure_jobs(model, r, opt) end)
    end, nil, ("a pass of %d jobs, prefill and steps"):format(r.rows))}
  end
  local name = ("%d %s%s"):format(r.rows, r.kind == "beams" and "beam" or "row",
    r.rows == 1 and "" or "s")
  return {
    best(function()
      return profile.measure(model, function() prefill(model, r.kind, r.rows, opt.context) end)
    end, 1, ("prefill for %s of %d tokens"):format(name, opt.context)),
    best(function()
      local kvs, logits = prefill(model, r.kind, r.rows, opt.context)
      logits = model:forward(kvs, logits:argmax())
      return profile.measure(model, function()
        for _ = 1, opt.steps do logits = model:forward(kvs, logits:argmax()) end
        logits:argmax():tolist()
      end)
    end, opt.steps, ("a step of %s"):format(name)),
  }
end

local function print_profiles(list)
  for _, p in ipairs(list) do
    io.write(("\n%s: %.3f ms\n"):format(p.what, p.ms), profile.show(p.profile))
  end
  io.stdout:flush()
end

-- ---- the table ----

-- Operations that a token of a prefill takes: of products but the head's.
local function token_operations(model)
  model:set_profile(true)
  model:count_step(1, 0)
  local n = 0
  for _, cost in ipairs(model:profile().costs) do
    if cost.kind == "matmul" and cost.layer <= model.n_layers then n = n + cost.operations end
  end
  model:set_profile(false)
  return n
end

local function summarise(model, r, opt, bandwidth, peak)
  if peak and r.prefill_tps then
    r.prefill_peak = r.prefill_tps * token_operations(model) / peak
  end
  local own = (opt.steps + 1) / 2 + WARM -- positions beyond the context that a step reads, in mean
  local shared = r.kind == "beams" and r.context // PAGE * PAGE or 0 -- beams copy a page begun
  local positions = shared + (r.context - shared + own) * r.rows
  r.kv_bytes = model.position_bytes * positions
  r.bytes = model.weight_bytes_step + r.kv_bytes
  r.step_ms, r.decode_tps = 1000 * r.step_s, r.rows / r.step_s
  r.roof = r.bytes / r.step_s / bandwidth
  r.step_s = nil
end

-- The strategies of --strategy against greedy.
local function run_strategies(model, opt)
  local prompt = race.PROMPT
  if opt.text then
    local file = assert(io.open(opt.text, "rb"))
    prompt = file:read "a"
    file:close()
  end
  local rows = race.run(model, opt.strategy, prompt, opt.tokens, opt.repeats)
  if opt.json then
    io.write(json.encode({model = model.path, device = model.device_info, strategies = rows},
      ORDER), "\n")
  else
    io.write(model.path, "\n", model.device_info, "\n\n", race.show(rows))
  end
end

local function print_head(model, threads, bandwidth, peak)
  io.write(("%s\n%s\nmemory roof: %.1f GB/s read by %s\n"):format(model.path,
    model.device_info, bandwidth / 1e9, peak and "its own" or threads .. " threads"))
  if peak then io.write(("peak: %.1f TFLOPS in products of bf16\n"):format(peak / 1e12)) end
  io.write "\n"
  io.write(("%-6s %5s %12s %10s %12s %10s %6s\n"):format("", "rows", "prefill t/s", "ms/step",
    "decode t/s", "MB/step", "roof"))
  io.stdout:flush()
end

-- other: whose step `ratio` is of.
local function print_row(r, other)
  io.write(("%-6s %5d %12s %10.2f %12.1f %10.1f %5.1f%%"):format(r.kind, r.rows,
    r.prefill_tps and ("%.1f"):format(r.prefill_tps) or "", r.step_ms, r.decode_tps, r.bytes / 1e6,
    100 * r.roof))
  if r.lua then io.write(("  Lua %.1f %% of the step"):format(100 * r.lua)) end
  if r.ratio then
    io.write(("  %.2f times the step after %d tokens, KV %.1f MB for %.1f"):format(r.ratio,
      other.context, r.kv_bytes / 1e6, other.kv_bytes / 1e6))
  end
  io.write "\n"
  if r.prefill_peak then
    io.write(("       prefill %.1f %% of the peak; a step: %.1f launches, %.2f waits, %.0f bytes "
      .. "up, %.0f down\n"):format(100 * r.prefill_peak, r.launches, r.syncs, r.bytes_up,
      r.bytes_down))
  end
  io.stdout:flush()
end

return {
  about = "prefill and decode tokens/s, and the share of the memory roof",
  common = {"model", "engine", "json", "quiet", "verbose", "version"},
  options = {
    rows = {default = {1, 4, 16}, of = "integer", least = 1, help = "batch sizes"},
    beams = {default = 4, min = 0, help = "also that many forks of one context; 0: none"},
    context = {default = 128, min = 1, help = "tokens before the first step"},
    against = {default = 0, min = 0,
      help = "also the beams after that many tokens, and the ratio of the steps; 0: not"},
    jobs = {default = 0, min = 0, help = "also that many jobs under the scheduler; 0: none"},
    steps = {default = 32, min = 1, help = "decode steps of a measurement"},
    strategy = {type = "list", help = "these strategies against greedy, and nothing else"},
    text = {type = "file", help = "their prompt (default: a report to summarise)"},
    tokens = {default = 128, min = 1, help = "new tokens of each"},
    profile = {default = false, help = "also where the time goes, by operation"},
    profile_layers = {default = false, help = "the same, by operation and layer"},
    repeats = {default = 3, min = 1, help = "the best of so many"},
    roof_mb = {default = 256, min = 1, max = 65536, help = "memory read to find the bandwidth"},
    peak_size = {default = 8192, min = 64, max = 65536,
      help = "rows and columns of the matrices that find a GPU's peak"},
  },
  main = function(model, opt)
    if opt.strategy then return run_strategies(model, opt) end
    local threads = tonumber((model.device_info or ""):match "(%d+) thread") or 1
    local runs, bandwidth = {}, 0
    for _, n in ipairs(opt.rows) do runs[#runs + 1] = {kind = "batch", rows = n} end
    if opt.jobs > 0 then runs[#runs + 1] = {kind = "jobs", rows = opt.jobs} end
    if opt.beams > 0 then runs[#runs + 1] = {kind = "beams", rows = opt.beams} end
    if #runs == 0 then
      error(llm.error("input", "nothing to measure: no --rows, --jobs or --beams"))
    end
    for _, r in ipairs(runs) do
      if r.rows > model.max_rows then
        local message = ("%d rows asked, --max-rows is %d"):format(r.rows, model.max_rows)
        error(llm.error("input", message))
      end
    end
    local longest = math.max(opt.context, opt.against) + opt.steps + WARM
    if longest > model.ctx then
      error(llm.error("input", ("%d positions asked, the context holds %d"):format(longest,
        model.ctx)))
    end
    local function read_bandwidth()
      local found = model:peak("read", opt.roof_mb << 20)
      local message
      if not found then found, message = sys.read_bandwidth(threads, opt.roof_mb << 20) end
      if not found then
        error(llm.error("input", ("--roof-mb %d: %s"):format(opt.roof_mb, message)))
      end
      bandwidth = math.max(bandwidth, found)
    end
    local peak = model:peak("products", opt.peak_size)
    local done = json.list {}
    local function report(failure)
      if not opt.json then return end
      for _, r in ipairs(done) do r.roof = r.bytes * r.decode_tps / r.rows / bandwidth end
      io.write(json.encode({model = model.path, device = model.device_info, threads = threads,
        bandwidth = bandwidth, peak = peak, runs = done, error = failure}, ORDER), "\n")
    end
    opt.partial = report
    for _ = 1, opt.repeats do read_bandwidth() end
    if not opt.json then print_head(model, threads, bandwidth, peak) end
    for _, r in ipairs(runs) do
      local group = {r}
      r.context = opt.context
      if r.kind == "beams" and opt.against > 0 then
        group = {{kind = r.kind, rows = r.rows, context = opt.against}, r}
      end
      for _ = 1, opt.repeats do
        read_bandwidth()
        for _, one in ipairs(group) do measure(model, one, opt) end
      end
      for i, one in ipairs(group) do
        summarise(model, one, opt, bandwidth, peak)
        if i == 2 then one.ratio = one.step_ms / group[1].step_ms end
        done[#done + 1] = one
        if not opt.json then print_row(one, group[1]) end
      end
    end
    if opt.profile or opt.profile_layers then
      local roofs = profile.peaks(model, threads)
      roofs.bandwidth = bandwidth
      for _, r in ipairs(runs) do
        r.profile = profile_run(model, r, opt, roofs)
        if not opt.json then print_profiles(r.profile) end
      end
    end
    report()
  end,
}
