-- shape:NAME: models of a known shape with random weights, peaks, and what is predicted of a step.
local h = require "spec.helper"
local llm = require "llm"
local roofline = require "llm.roofline"
local shape = require "llm.shape"

local emulated = h.exists((h.program:match "^(.*/)" or "./") .. "libllmlua-cuda-emulated.so")

local function emulation(sentence, body)
  if emulated then return it(sentence, body) end
  pending(sentence .. " (no emulation was built)")
end

local function load(name, options)
  options.pages = options.pages or 16
  return assert(shape.load(name, options))
end

-- Whether all numbers are finite and not all the same.
local function is_alive(list)
  local least, most = math.huge, -math.huge
  for _, x in ipairs(list) do
    if x ~= x then return false end
    least, most = math.min(least, x), math.max(most, x)
  end
  return least > -math.huge and most < math.huge and least < most
end

local function logits_of(model, n)
  local ids = {}
  for i = 1, n do ids[i] = 37 * i % model.vocab_size end
  local kv <close> = model:cache()
  local list = model:forward(kv, ids):tolist()
  return type(list[1]) == "table" and list[1] or list
end

describe("a shape", function()
  it("has random weights in every format, and finite logits", function()
    for _, format in ipairs {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k",
      "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"} do
      local model <close> = load("tiny-" .. format, {device = "ref"})
      assert(is_alive(logits_of(model, 5)), format)
    end
  end)

  it("has the same weights for the same seed, and others for another", function()
    local one <close> = load("tiny-q4_k", {device = "ref"})
    local same <close> = load("tiny-q4_k", {device = "cpu", threads = 1})
    local other <close> = load("tiny-q4_k", {device = "ref", random = 2})
    local list = logits_of(one, 5)
    assert(h.difference(list, logits_of(same, 5)) < 0.1 * h.largest(list))
    assert(h.difference(list, logits_of(other, 5)) > 0.1 * h.largest(list))
  end)

  it("of 8 billion weights needs neither disk nor memory where nothing runs", function()
    local model <close> = load("llama-8b-bf16", {device = "ref", random = false, pages = 1})
    assert.equal(32, model.n_layers)
    assert(model.weight_bytes_step > 15e9)
    assert(model:memory().packed_bytes == 0)
  end)

  it("that is too large for the CPU's memory is refused with both numbers", function()
    local model, message = shape.load("llama-8b-f32", {device = "ref", pages = 1})
    if model then return model:close() end -- a machine with room for it
    assert(message:find "they take twice %d+ bytes, %d+ are available", message)
  end)

  it("that is unknown, or whose rows are no whole blocks, is refused", function()
    local model, message = shape.load("llama-9b-bf16", {})
    assert.is_nil(model)
    assert(message:find("shapes are llama%-1b, llama%-8b"), message)
    model, message = shape.load("smollm2-q4_k", {})
    assert.is_nil(model)
    assert(message:find("rows of 576 and 1536 values are no whole blocks of 256", 1, true), message)
  end)

  it("is a model that the command line takes", function()
    local out, err, code = h.run("bench -m shape:tiny-q8_0 --device cpu --threads 1 --rows 1 "
      .. "--beams 0 --context 8 --steps 2 --repeats 1 --roof-mb 8 --json")
    assert.equal(0, code, err)
    assert(out:find("shape:tiny-q8_0", 1, true) and out:find '"decode_tps":', out)
  end)

  emulation("is made on a GPU with few bytes sent", function()
    for _, format in ipairs {"q4_k", "bf16", "iq4_nl"} do
      local before = llm.stats().bytes_up
      local model <close> = load("smollm2-q4_1", {device = "cuda-emulated", pages = 4})
      local sent = llm.stats().bytes_up - before
      assert(sent < model.weight_bytes_step / 4, sent .. " bytes sent")
      local tiny <close> = load("tiny-" .. format, {device = "cuda-emulated"})
      assert(is_alive(logits_of(tiny, 5)), format)
    end
  end)
end)

describe("a peak", function()
  it("of the CPU is not known here", function()
    local model <close> = load("tiny-f16", {device = "cpu", threads = 1})
    assert.is_nil(model:peak("read", 1 << 20))
    local ok, err = pcall(model.peak, model, "write", 1)
    assert(not ok and err.message:find("read or products", 1, true), tostring(err))
  end)

  emulation("of a GPU is measured, with cuBLASLt and without", function()
    local script = h.write(h.scratch "peak.lua", [[
      local model = assert(llm.load(nil, {device = "cuda-emulated"}))
      print(model:peak("read", 1 << 18) > 0, model:peak("products", 64) > 0)
    ]])
    for _, settings in ipairs {"", "LLMLUA_EMULATION_BLAS=off"} do
      local out, err, code = h.run(h.quote(script), nil, settings)
      assert.equal(0, code, err)
      assert.equal("true\ttrue\n", out)
    end
  end)
end)

describe("the roofline", function()
  it("counts a step as a profile of one that runs", function()
    local model <close> = load("tiny-q4_k", {device = "ref"})
    local kvs, feed, ids = {}, {}, {}
    for i = 1, 3 do
      kvs[i], feed[i], ids[i] = model:cache(), {}, i
      for j = 1, 40 do feed[i][j] = 10 * i + j end
    end
    model:forward(kvs, feed)
    local function counted(f)
      model:set_profile(true)
      f()
      local list = {}
      for i, cost in ipairs(model:profile().costs) do
        list[i] = {cost.kind, cost.rows, cost.bytes, cost.operations}
      end
      model:set_profile(false)
      return list
    end
    assert.same(counted(function() model:forward(kvs, ids) end),
      counted(function() model:count_step(3, 40) end))
  end)

  it("refuses to count without a profile, or beyond the context", function()
    local model <close> = load("tiny-f16", {device = "ref", ctx = 64})
    local ok, err = pcall(model.count_step, model, 1, 8)
    assert(not ok and err.message:find("the profile is off", 1, true), tostring(err))
    model:set_profile(true)
    ok, err = pcall(model.count_step, model, 1, 64)
    assert(not ok and err.message:find("at most 4096 of 63 are counted", 1, true), tostring(err))
  end)

  it("is a gap for each launch and the longer of reading and computing", function()
    local gpu = {bandwidth = 100, operations = 1000}
    local gap = roofline.LAUNCH_GAP
    assert.equal(2 + 3 * gap, roofline.seconds({bytes = 200, operations = 10, launches = 3}, gpu))
    assert.equal(4 + gap, roofline.seconds({bytes = 200, operations = 4000, launches = 1}, gpu))
  end)

  it("has 7 launches a layer and adds up to the model's bytes", function()
    local model <close> = load("llama-8b-bf16", {device = "ref", random = false, pages = 1})
    local p = roofline.predict(model, 1, 128)
    assert.equal(7 * 32 + 3, p.launches)
    local most = model.weight_bytes_step + 129 * model.position_bytes
    assert(p.bytes > 0.99 * model.weight_bytes_step and p.bytes <= 1.01 * most)
    local share = 0
    for _, k in ipairs(p.kernels) do share = share + k.share[2] end
    assert(math.abs(share + roofline.STEP_GAP / p.step_s[2] - 1) < 1e-9)
    assert(p.tps[2] > 200 and p.tps[2] < 4.8e12 / 15e9)
  end)

  -- What a step of so many sequences costs the emulated GPU, and what is predicted.
  local function launches(model, n)
    local kvs, ids = {}, {}
    for i = 1, n do kvs[i], ids[i] = model:cache(), {1, 2, i} end
    local logits = model:forward(kvs, ids)
    for _ = 1, 3 do logits = model:forward(kvs, logits:argmax()) end
    ids = logits:argmax():tolist()
    local before = llm.stats().launches
    model:forward(kvs, ids)
    local made = llm.stats().launches - before
    for _, kv in ipairs(kvs) do kv:close() end
    return made, roofline.predict(model, n, 6).launches
  end

  emulation("counts the launches that the CUDA backend makes", function()
    for _, path in ipairs {"llama-f16", "qwen2-f32", "qwen3-f16", "gemma3-f32", "gpt2-f32"} do
      local model <close> = h.tiny(path, {device = "cuda-emulated"})
      local made, predicted = launches(model, 1)
      assert.equal(predicted, made, path)
    end
  end)

  emulation("counts 7 launches a layer where formats are mixed, and as many are made", function()
    for _, name in ipairs {"tiny-q4_k_m", "tiny-q5_k_m", "tiny-mixed"} do
      local model <close> = load(name, {device = "cuda-emulated", invariant = true})
      for _, n in ipairs {1, 3} do
        local made, predicted = launches(model, n)
        assert.same({7 * 2 + 3, 7 * 2 + 3}, {made, predicted}, name)
      end
    end
  end)

  it("prints a table, or JSON", function()
    local out, err, code = h.run "roofline shape:tiny-q4_k --rows 2 --context 64"
    assert.equal(0, code, err)
    assert(out:find("2 rows, 64 positions cached; predicted, not measured", 1, true), out)
    assert(out:find "gate, up%s+Q4_K%s+2", out)
    out, err, code = h.run "roofline shape:tiny-q4_k models/builtin.gguf --json"
    assert.equal(0, code, err)
    local _, n = out:gsub('"gpu":"H200"', "")
    assert.equal(2, n)
  end)
end)
