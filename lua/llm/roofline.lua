-- What a decode step would take on a GPU at best, computed from the plan: the bytes that a kernel
-- has to read and its operations, each over what the GPU can do (Williams et al. 2009, "Roofline"),
-- and a gap for every launch. Nothing runs: these are predictions, and bounds.
local roofline = {}

-- As their makers give them: bytes of memory a second; operations a second of 16-bit products with
-- f32 sums, without sparsity.
roofline.GPUS = {
  {name = "RTX 4090", bandwidth = 1008e9, operations = 165e12},
  {name = "H200", bandwidth = 4800e9, operations = 989e12},
}

-- Assumed, in seconds. Between two kernels of a graph, one of which waits for the other: the last
-- blocks of the one end and the first loads of the other come back. And once a step: starting the
-- graph, sending what it reads, choosing an id.
roofline.LAUNCH_GAP, roofline.STEP_GAP = 1.5e-6, 15e-6

-- How the CUDA backend puts operations together (kernels/cuda/fuse.c), by neighbours: what comes
-- with it into one launch.
local WITH = {
  norm = {add = true},
  ["q, k, v"] = {["q, k, v"] = true},
  ["gate, up"] = {["gate, up"] = true, silu_mul = true, gelu_mul = true},
  attention = {norm_heads = true, rope = true, append = true, attend = true},
  product = {add = true, gelu = true},
}
local ATTENTION = {norm_heads = true, rope = true, append = true, attend = true}

-- What an operation begins: the name of the kernel, and the row of WITH.
local function begin(model, cost)
  if ATTENTION[cost.kind] then return "attention", "attention" end
  if cost.kind:find "^norm" then return "norm", "norm" end
  if cost.kind ~= "matmul" then return cost.kind, nil end
  if cost.layer > model.n_layers then return "head", "product" end
  local name = cost.weight:gsub("^blk%.%d+%.", ""):gsub("%.weight$", "")
  if name:find "^attn_[qkv]+$" then return "q, k, v", "q, k, v" end
  if name == "ffn_gate" then return "gate, up", "gate, up" end
  return name:gsub("^attn_", ""):gsub("^ffn_", ""), "product"
end

local function joins(model, g, cost)
  local with = WITH[g.with]
  if g.added and not g.normed and cost.kind == "norm_rms" then -- of the next layer too
    g.normed = true
    return cost.layer <= model.n_layers
  end
  if not with or cost.layer ~= g.layer or g.normed then return false end
  if with[cost.kind] then
    g.added = g.added or g.with == "norm" and cost.kind == "add"
    return true
  end
  if cost.kind ~= "matmul" then return false end
  local name = cost.weight:gsub("^blk%.%d+%.", ""):gsub("%.weight$", "")
  return g.with == "q, k, v" and name:find "^attn_[qkv]+$" ~= nil
    or g.with == "gate, up" and name == "ffn_up"
end

-- The launches of a step of so many sequences of so many positions, those of one name together and
-- in the order of the first: {name, format, launches, bytes, operations}.
function roofline.kernels(model, n_sequences, n_past)
  model:set_profile(true)
  model:count_step(n_sequences, n_past)
  local costs = model:profile().costs
  model:set_profile(false)
  local list, by_key, launch = {}, {}, nil
  for _, cost in ipairs(costs) do
    if not (launch and joins(model, launch, cost)) then
      local name, with = begin(model, cost)
      launch = {with = with, layer = cost.layer, key = name}
      local kernel = by_key[name]
      if not kernel then
        kernel = {name = name, launches = 0, bytes = 0, operations = 0,
          format = cost.kind == "matmul" and cost.format or nil}
        by_key[name], list[#list + 1] = kernel, kernel
      end
      kernel.launches = kernel.launches + 1
    end
    local kernel = by_key[launch.key]
    kernel.bytes, kernel.operations = kernel.bytes + cost.bytes,
      kernel.operations + cost.operations
  end
  return list
end

-- Seconds that a kernel's launches take on a GPU, gaps included.
function roofline.seconds(kernel, gpu)
  return math.max(kernel.bytes / gpu.bandwidth, kernel.operations / gpu.operations)
    + kernel.launches * roofline.LAUNCH_GAP
end

-- {kernels = {… with seconds[i], share[i] for GPU i}, step_s = {…}, tps = {…}, launches, bytes}
function roofline.predict(model, n_sequences, n_past)
  local out = {kernels = roofline.kernels(model, n_sequences, n_past), step_s = {}, tps = {},
    launches = 0, bytes = 0}
  for i, gpu in ipairs(roofline.GPUS) do
    out.step_s[i] = roofline.STEP_GAP
    for _, k in ipairs(out.kernels) do
      k.seconds, k.share = k.seconds or {}, k.share or {}
      k.seconds[i] = roofline.seconds(k, gpu)
      out.step_s[i] = out.step_s[i] + k.seconds[i]
    end
    for _, k in ipairs(out.kernels) do k.share[i] = k.seconds[i] / out.step_s[i] end
    out.tps[i] = n_sequences / out.step_s[i]
  end
  for _, k in ipairs(out.kernels) do
    out.launches, out.bytes = out.launches + k.launches, out.bytes + k.bytes
  end
  return out
end

return roofline
