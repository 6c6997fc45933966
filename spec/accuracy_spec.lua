-- What activations in 8 bits cost: the KL divergence of the cpu device from the reference device on
-- the same weights (spec/data/reference/accuracy). LLMLUA_SPEC_FULL=1: all nine chunks, not two.
local h = require "spec.helper"

local CHUNK, FIRST = 512, 256

-- KL divergence at positions 256 … 510 of each chunk, and how often the likeliest id is the same.
local function compare(base, other, ids, n_chunks)
  local kls, same, n = {}, 0, 0
  for chunk = 0, n_chunks - 1 do
    local part = table.move(ids, chunk * CHUNK + 1, (chunk + 1) * CHUNK, 1, {})
    local rows = {}
    for i, model in ipairs {base, other} do
      local kv <close> = model:cache()
      rows[i] = model:forward(kv, part, {rows = CHUNK - FIRST}):log_softmax()
    end
    local b, o = rows[1], rows[2]
    local kl = (b:exp() * (b - o)):sum():tolist()
    local best_b, best_o = b:argmax():tolist(), o:argmax():tolist()
    for i = 1, #kl - 1 do -- the last position predicts what is not in the chunk
      n = n + 1
      kls[n] = kl[i]
      if best_b[i] == best_o[i] then same = same + 1 end
    end
  end
  table.sort(kls)
  local mean = 0
  for _, kl in ipairs(kls) do mean = mean + kl / n end
  return mean, kls[math.ceil(0.999 * n)], same / n
end

describe("8-bit activations", function()
  local path = h.real_path "smollm2"
  local with = h.with(path, it, pending)

  with("cost SmolLM2 Q4_1 at most the bar of the reference", function()
    local base <close> = assert(h.load(path, {device = "ref"}))
    local other <close> = assert(h.load(path, {device = "cpu", kv = "f32"}))
    local ids = base:encode(h.read(h.data .. "reference/accuracy/text.txt"))
    local full = os.getenv "LLMLUA_SPEC_FULL"
    local mean, high, same = compare(base, other, ids, full and 9 or 2)
    print(("KL mean %.6f, 99.9 %% %.6f, same top-1 %.2f %%"):format(mean, high, 100 * same))
    assert(mean <= 0.0030, ("mean KL %.6f"):format(mean))
    assert(high <= 0.05 or not full and high <= 0.08, ("99.9 %% KL %.6f"):format(high))
    assert(same >= (full and 0.955 or 0.94), ("same top-1 %.4f"):format(same))
  end)
end)

describe("kv q8_0", function()
  local path = h.real_path "smollm2"
  local with = h.with(path, it, pending)

  with("costs no more than activations in 8 bits may", function()
    local base <close> = assert(h.load(path, {device = "cpu", kv = "f32"}))
    local other <close> = assert(h.load(path, {device = "cpu", kv = "q8_0"}))
    local ids = base:encode(h.read(h.data .. "reference/accuracy/text.txt"))
    local full = os.getenv "LLMLUA_SPEC_FULL"
    local mean, high, same = compare(base, other, ids, full and 9 or 1)
    print(("KL mean %.6f, 99.9 %% %.6f, same top-1 %.2f %%"):format(mean, high, 100 * same))
    assert(mean > 0 and mean <= (full and 0.0030 or 0.0045), ("mean KL %.6f"):format(mean))
    assert(high <= (full and 0.05 or 0.08), ("99.9 %% KL %.6f"):format(high))
    assert(same >= 0.94, ("same top-1 %.4f"):format(same))
  end)
end)

-- Of a file of F16, such as llama-quantize makes of the one above. Without the option the cpu
-- device differs from ref by sums alone (mean 0.000000), so that it is the base here.
describe("f16_as_bf16", function()
  local path = os.getenv "LLMLUA_SPEC_F16"
  ;(path and it or pending)("costs less than activations in 8 bits", function()
    local base <close> = assert(h.load(path, {device = "cpu", kv = "f32"}))
    local other <close> = assert(h.load(path, {device = "cpu", kv = "f32", f16_as_bf16 = true}))
    local ids = base:encode(h.read(h.data .. "reference/accuracy/text.txt"))
    local mean, high, same = compare(base, other, ids, 9)
    print(("KL mean %.6f, 99.9 %% %.6f, same top-1 %.2f %%"):format(mean, high, 100 * same))
    assert(mean > 0 and mean <= 0.0004, ("mean KL %.6f"):format(mean))
    assert(high <= 0.01, ("99.9 %% KL %.6f"):format(high))
    assert(same >= 0.98, ("same top-1 %.4f"):format(same))
  end)
end)
