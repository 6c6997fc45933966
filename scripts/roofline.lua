-- What each kernel of a decode step must read and compute, and how long that takes on GPUs that are
-- not here: predictions of lua/llm/roofline.lua. Weights are not read: shape:llama-8b-bf16 needs no
-- file.
local json = require "llm.json"
local roofline = require "llm.roofline"
local shape = require "llm.shape"

local ORDER = {"model", "rows", "context", "launches", "bytes", "gpus", "gpu", "step_ms", "tps",
  "kernels", "name", "format", "operations", "us", "share"}

local function open(path, opt)
  local options = {device = "ref", kv = opt.kv or "f16", ctx = opt.context + 1, pages = 1,
    weight_cache = "off", random = false}
  local name = shape.name(path)
  if not name then options.random = nil end
  local model, message
  if name then model, message = shape.load(name, options)
  else model, message = llm.load(path, options) end
  return model or error(llm.error("input", message))
end

local function microseconds(list)
  local out = json.list {}
  for i, seconds in ipairs(list) do out[i] = 1e6 * seconds end
  return out
end

local function print_json(path, p, opt)
  local gpus, kernels = json.list {}, json.list {}
  for i, gpu in ipairs(roofline.GPUS) do
    gpus[i] = {gpu = gpu.name, step_ms = 1e3 * p.step_s[i], tps = p.tps[i]}
  end
  for i, k in ipairs(p.kernels) do
    kernels[i] = {name = k.name, format = k.format, launches = k.launches, bytes = k.bytes,
      operations = k.operations, us = microseconds(k.seconds), share = json.list(k.share)}
  end
  io.write(json.encode({model = path, rows = opt.rows, context = opt.context,
    launches = p.launches, bytes = p.bytes, gpus = gpus, kernels = kernels}, ORDER), "\n")
end

local function print_table(path, p, opt)
  io.write(("%s: %d row%s, %d positions cached; predicted, not measured\n"):format(path, opt.rows,
    opt.rows == 1 and "" or "s", opt.context))
  io.write(("  %-10s %-6s %8s %10s %9s"):format("kernel", "format", "launches", "MB", "GFLOP"))
  for _, gpu in ipairs(roofline.GPUS) do io.write(("   %8s us  share"):format(gpu.name)) end
  for _, k in ipairs(p.kernels) do
    io.write(("\n  %-10s %-6s %8d %10.2f %9.3f"):format(k.name, k.format or "", k.launches,
      k.bytes / 1e6, k.operations / 1e9))
    for i in ipairs(roofline.GPUS) do
      io.write(("   %11.1f %5.1f%%"):format(1e6 * k.seconds[i], 100 * k.share[i]))
    end
  end
  io.write(("\n  %-17s %8d %10.2f %9s"):format("a step", p.launches, p.bytes / 1e6, ""))
  for i in ipairs(roofline.GPUS) do io.write(("   %11.1f %6s"):format(1e6 * p.step_s[i], "")) end
  io.write(("\n  %-38s"):format "tokens/s")
  for i in ipairs(roofline.GPUS) do io.write(("   %11.0f %6s"):format(p.tps[i], "")) end
  io.write "\n"
end

return {
  about = "bytes, operations and predicted time of a decode step's kernels on GPUs",
  common = {"json", "version"},
  arguments = "MODEL…",
  model = false,
  options = {
    rows = {default = 1, min = 1, max = 4096, help = "sequences of the step"},
    context = {default = 128, min = 0, help = "positions that each holds"},
    kv = {type = "string", choices = {"f32", "f16", "q8_0"}, help = "of keys and values (f16)"},
  },
  help = ("Assumed: %.1f us a launch, %.0f us a step besides.\n"):format(
    1e6 * roofline.LAUNCH_GAP, 1e6 * roofline.STEP_GAP),
  main = function(_, opt)
    for i, path in ipairs(opt.arguments) do
      local model <close> = open(path, opt)
      local p = roofline.predict(model, opt.rows, opt.context)
      if opt.json then print_json(path, p, opt)
      else
        if i > 1 then io.write "\n" end
        print_table(path, p, opt)
      end
    end
  end,
}
