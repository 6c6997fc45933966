-- Where the time of passes goes: what a model's profile counted, with the time around it, as lines
-- of a table. Each operation is held against two roofs (Williams et al. 2009): the bytes that it
-- must read over the bandwidth of memory, its operations over what the cores can do. The nearer one
-- bounds it; far from both, other things do (overheads, caches, waiting for memory's latency).
local sys = require "llm.sys"

local profile = {}

local FLOATS = {F32 = true, F16 = true, BF16 = true}
local NEAR = 0.5 -- of a roof: it bounds

-- What the arithmetic of a model's device can do: {int8 =, float =} operations a second, nil where
-- it is not known.
function profile.peaks(model, threads)
  local tier = (model.device_info or ""):match "^cpu: (%w+)"
  if not tier then return {} end
  return {int8 = sys.peak_operations(threads, tier, true),
    float = sys.peak_operations(threads, tier, false)}
end

-- Runs f under a profile: {seconds, pass_s, run_s, tensor_s, passes, costs}.
function profile.measure(model, f)
  model:set_profile(true)
  local before, start = llm.stats(), sys.clock()
  local is_fine, message = pcall(f)
  local out = model:profile()
  out.seconds = sys.clock() - start
  model:set_profile(false)
  if not is_fine then error(message, 0) end
  local after = llm.stats()
  out.pass_s, out.passes = after.step_s - before.step_s, after.passes - before.passes
  return out
end

-- "attn_q" of a weight blk.3.attn_q.weight; "head"; else the kind.
local function name_of(model, cost)
  if cost.kind == "matmul" and cost.layer > model.n_layers then return "head" end
  if cost.kind == "embed" or not cost.weight then return cost.kind end
  return cost.weight:gsub("^blk%.%d+%.", ""):gsub("%.weight$", "")
end

-- Costs of one name (and layer) added up, in the order of the plan.
local function group(model, costs, by_layer)
  local groups, by_key = {}, {}
  for _, cost in ipairs(costs) do
    local name = name_of(model, cost)
    local format = cost.kind == "matmul" and cost.format or nil
    local key = ("%s %s %s"):format(name, format, by_layer and cost.layer)
    local g = by_key[key]
    if not g then
      g = {name = name, format = format, layer = by_layer and cost.layer or nil, seconds = 0,
        bytes = 0, operations = 0, wait_s = 0}
      by_key[key], groups[#groups + 1] = g, g
    end
    g.seconds, g.wait_s = g.seconds + cost.seconds - cost.input_s, g.wait_s + cost.wait_s
    g.bytes, g.operations = g.bytes + cost.bytes, g.operations + cost.operations
  end
  return groups
end

-- Which roof is nearer, and the share of it that is reached.
local function hold(g, roofs)
  local peak = g.format and not FLOATS[g.format] and roofs.int8 or roofs.float
  local memory = g.bytes > 0 and roofs.bandwidth and g.bytes / g.seconds / roofs.bandwidth or 0
  local compute = g.operations > 0 and peak and g.operations / g.seconds / peak or 0
  if memory == 0 and compute == 0 then return end
  g.roof, g.reached = "memory", memory
  if compute > memory then g.roof, g.reached = "compute", compute end
end

-- What was measured as a list of lines {name, format, layer, ms, share, wait_ms, mb, gbps, gops,
-- roof, reached}, per step of n. Operations come by their time, or by layer in the order of the
-- plan; below them what is no operation. wait_ms: how long threads then waited for others. roofs:
-- {bandwidth, int8, float}, a second.
function profile.lines(model, measured, n, roofs, by_layer)
  local lines, spent, input_s = group(model, measured.costs, by_layer), 0, 0
  for _, cost in ipairs(measured.costs) do
    spent, input_s = spent + cost.seconds, input_s + cost.input_s
  end
  for _, g in ipairs(lines) do hold(g, roofs) end
  if not by_layer then table.sort(lines, function(a, b) return a.seconds > b.seconds end) end
  local function rest(name, seconds)
    lines[#lines + 1] = {name = name, seconds = math.max(0, seconds), bytes = 0, operations = 0,
      wait_s = 0}
  end
  rest("rounding activations", input_s)
  rest("waiting at barriers", measured.run_s - spent)
  rest("around the runs", measured.pass_s - measured.run_s)
  rest("tensor operations", measured.tensor_s)
  rest("Lua, scheduler", measured.seconds - measured.pass_s - measured.tensor_s)
  for _, g in ipairs(lines) do
    g.ms, g.share, g.mb = 1000 * g.seconds / n, g.seconds / measured.seconds, g.bytes / n / 1e6
    g.gbps = g.bytes > 0 and g.bytes / g.seconds / 1e9 or nil
    g.gops = g.operations > 0 and g.operations / g.seconds / 1e9 or nil
    g.wait_ms = g.wait_s > 0 and 1000 * g.wait_s / n or nil
    g.seconds, g.bytes, g.operations, g.wait_s = nil, nil, nil, nil
  end
  return lines
end

local function cell(format, value)
  return value and format:format(value) or ""
end

local function bound(line)
  if not line.roof then return "" end
  local text = ("%s %.0f %%"):format(line.roof, 100 * line.reached)
  return line.reached < NEAR and ("neither: %s"):format(text) or text
end

-- The lines as text.
function profile.show(lines)
  local out = {("  %-21s %5s %-6s %9s %7s %8s %8s %6s %7s  %s\n"):format("", "layer", "format",
    "ms", "share", "waiting", "MB", "GB/s", "GOPS", "bound by")}
  for _, line in ipairs(lines) do
    local text = ("  %-21s %5s %-6s %9.4f %6.1f%% %8s %8s %6s %7s  %s"):format(line.name,
      line.layer or "", line.format or "", line.ms, 100 * line.share, cell("%.4f", line.wait_ms),
      cell("%.2f", line.mb > 0 and line.mb or nil), cell("%.1f", line.gbps),
      cell("%.1f", line.gops), bound(line))
    out[#out + 1] = text:gsub("%s+$", "") .. "\n"
  end
  return table.concat(out)
end

return profile
