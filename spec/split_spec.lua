-- gpu_layers: a model that is on the GPU (the emulated one, if no other is to be tested) with its
-- last layers and on the CPU with the others. What holds of a model must hold wherever it is cut.
local h = require "spec.helper"
local llm = require "llm"

local DEVICE = h.device or "cuda-emulated"
local TOLERANCE = 5e-3 -- of the largest logit, for half precision, as in models_spec

local function open(name, opts)
  local options = {device = DEVICE, threads = 2, weight_cache = "off", invariant = true}
  for key, value in pairs(opts or {}) do options[key] = value end
  return llm.load(name and h.data .. "models/" .. name .. ".gguf", options)
end

local whole_model, reason = open "llama-f16"

local function load(name, n, opts)
  local options = {gpu_layers = n}
  for key, value in pairs(opts or {}) do options[key] = value end
  return assert(open(name, options))
end

local function ids_of(seed, n)
  local rng, ids = llm.rng(seed), {}
  for i = 1, n do ids[i] = math.floor(rng:uniform() * 300) end
  return ids
end

local function row(model, kv, id)
  local fork <close> = kv:fork()
  return model:forward(fork, id):tolist()
end

local function near(expected, got)
  local difference, most = h.difference(expected, got), h.largest(expected)
  assert(difference <= TOLERANCE * most, ("%g of %g"):format(difference, most))
end

describe("a model with some layers on the GPU", function()
  if not whole_model then
    pending("needs a GPU or the emulated one: " .. tostring(reason))
    return
  end
  local ids = ids_of(1, 37)

  -- Tied heads, sliding windows, learned positions, biases, quantised activations on the CPU alone.
  for _, name in ipairs {"llama-f16", "qwen2-f32", "qwen3-bf16", "gemma3-f32", "gpt2-f32"} do
    it(name .. " has the logits and the text of ref wherever it is cut", function()
      local ref <close> = assert(open(name, {device = "ref"}))
      local expected = ref:forward(ref:cache(), ids, {rows = "all"}):lists()
      local text = h.greedy(ref, ids, 3)
      for n = 0, ref.n_layers do
        local model <close> = load(name, n, {invariant = false})
        assert.equal(n, model.gpu_layers)
        local rows = model:forward(model:cache(), ids, {rows = "all"}):lists()
        for i = 1, #ids do near(expected[i], rows[i]) end
        assert.same(text, h.greedy(model, ids, 3))
      end
    end)
  end

  it("is whole where as many or more are asked for than it has", function()
    for _, n in ipairs {whole_model.n_layers, whole_model.n_layers + 1, 1000} do
      local model <close> = load("llama-f16", n)
      assert.same({whole_model.n_layers, nil, whole_model.device_info},
        {model.gpu_layers, model:memory().parts, model.device_info})
    end
  end)

  for _, n in ipairs {0, 2, 5} do
    describe(("(%d of 7)"):format(n), function()
      local model, cut
      setup(function()
        model = load("gemma3-f32", n)
        cut = model.n_layers - n
      end)
      teardown(function() model:close() end)

      it("gives hidden states of every layer, and their logits", function()
        local layers = {}
        for l = 0, model.n_layers do layers[l + 1] = l end
        local logits, hidden = model:forward(model:cache(), ids, {rows = 1, hidden = layers})
        local last = hidden[model.n_layers]:rows({#ids})
        assert.same(logits:tolist(), model:logits(last):tolist())
        local _, one = model:forward(model:cache(), ids, {rows = 0, hidden = {cut}})
        assert.same(hidden[cut]:lists(), one[cut]:lists())
      end)

      it("exits after a layer on either side", function()
        for _, exit in ipairs {1, cut, math.min(cut + 1, model.n_layers)} do
          local kv <close> = model:cache()
          local logits, hidden = model:forward(kv, ids, {exit = exit, hidden = {exit}})
          assert.same(model:logits(hidden[exit]:rows({#ids})):tolist(), logits:tolist())
          if exit < model.n_layers then assert(not pcall(model.forward, model, kv, 5)) end
          kv:truncate(0)
          model:forward(kv, ids)
        end
      end)

      it("gives rows of a batch the bits that they have alone", function()
        local kvs, alone, lists = {}, {}, {}
        for i = 1, 3 do
          lists[i] = ids_of(i, 9 * i)
          alone[i] = model:forward(model:cache(), lists[i]):tolist()
          kvs[i] = model:cache()
        end
        assert.same(alone, model:forward(kvs, lists):lists())
        for i = 1, 3 do alone[i] = row(model, kvs[i], i) end
        assert.same(alone, model:forward(kvs, {1, 2, 3}):lists())
      end)

      it("gives rows of a tree the bits of their paths, and keeps one", function()
        local kv <close> = model:cache()
        model:forward(kv, ids)
        local nodes, parents, rows, kvs = {5, 6, 7, 8, 9, 4}, {0, 1, 1, 0, 3, 5}, {}, {[0] = kv}
        for i, id in ipairs(nodes) do
          kvs[i] = kvs[parents[i]]:fork()
          rows[i] = model:forward(kvs[i], id):tolist()
        end
        assert.same(rows, model:forward(kv, nodes, {rows = "all", parents = parents}):lists())
        kv:keep {38, 40, 42, 43}
        assert.same(kvs[6]:tokens(), kv:tokens())
        assert.same(row(model, kvs[6], 3), row(model, kv, 3))
      end)

      it("forks and reorders caches that go on as if alone", function()
        local kv = model:cache()
        model:forward(kv, ids)
        local kvs = llm.reorder({kv, kv:fork(33)}, {2, 1, 1})
        model:forward(kvs, {{1}, {2, 3}, {4}})
        local fresh = model:cache()
        for i, more in ipairs {{1}, {2, 3}, {4}} do
          fresh:truncate(0)
          model:forward(fresh, {table.unpack(ids, 1, i == 1 and 33 or 37)})
          model:forward(fresh, more)
          assert.same(fresh:tokens(), kvs[i]:tokens())
          assert.same(row(model, fresh, 9), row(model, kvs[i], 9))
        end
      end)

      it("saves caches that a model cut elsewhere restores, byte for byte", function()
        local kv <close> = model:cache()
        model:forward(kv, ids)
        local first, second, third = h.scratch "1.kv", h.scratch "2.kv", h.scratch "3.kv"
        assert(kv:save(first))
        for _, m in ipairs {7, 1, 3} do
          local other <close> = load("gemma3-f32", m)
          local there <close> = assert(other:restore(first))
          assert(there:save(second))
          assert(h.read(first) == h.read(second))
          near(row(model, kv, 9), row(other, there, 9))
          other:forward(there, 8)
          assert(there:save(third))
          local back <close> = assert(model:restore(third))
          assert.same(there:tokens(), back:tokens())
        end
        local again <close> = assert(model:restore(first))
        assert.same(row(model, kv, 9), row(model, again, 9))
      end)

      it("scores what follows as the rows of logits do", function()
        local kv <close> = model:cache()
        model:forward(kv, ids)
        local more = {7, 8, 9, 10, 11}
        local fed <close> = kv:fork()
        local rows = model:forward(fed, more, {rows = "all"}):log_softmax():lists()
        local first = model:forward(kv:fork(36), ids[37]):log_softmax():lists()[1]
        local scores = model:score(kv, more):tolist()
        assert(math.abs(scores[1] - first[8]) < 1e-5)
        for i = 2, #more do assert(math.abs(scores[i] - rows[i - 1][more[i] + 1]) < 1e-5) end
      end)
    end)
  end

  it("feeds choices that nobody has read, and refuses those that could not be made", function()
    local model <close> = load("llama-f16", 1)
    local kv, read = model:cache(), model:cache()
    local logits, same = model:forward(kv, ids), model:forward(read, ids)
    for _ = 1, 5 do
      logits = model:forward(kv, logits:argmax())
      same = model:forward(read, same:argmax():item())
      assert.same(same:tolist(), logits:tolist())
    end
    assert.same(read:tokens(), kv:tokens())
    local ok, err = pcall(model.forward, model, kv, (logits * (0 / 0)):argmax())
    assert.same({false, "nan"}, {ok, err.kind})
    assert.equal(42, #kv)
  end)

  it("counts what each operation of the plan costs", function()
    local model <close> = load("llama-f16", 1)
    local whole <close> = load("llama-f16")
    local profiles = {}
    for i, m in ipairs {model, whole} do
      m:set_profile(true)
      m:forward(m:cache(), ids)
      m:count_step(2, 40)
      profiles[i] = m:profile()
    end
    assert.equal(#profiles[2].costs, #profiles[1].costs)
    for i, cost in ipairs(profiles[1].costs) do
      local other = profiles[2].costs[i]
      assert.same({other.kind, other.layer, other.calls, other.rows, other.operations},
        {cost.kind, cost.layer, cost.calls, cost.rows, cost.operations})
    end
    assert(profiles[1].run_s > 0)
  end)

  it("tells where its layers are and what they take", function()
    local model <close> = load("llama-f16", 1)
    local kv <close> = model:cache()
    model:forward(kv, ids)
    local memory = model:memory()
    local first, second = memory.parts[1], memory.parts[2]
    assert.same({"cpu", 1, 1, DEVICE, 2, 2}, {first.device, first.first_layer,
      first.last_layer, second.device, second.first_layer, second.last_layer})
    for _, name in ipairs {"packed_bytes", "scratch_bytes"} do
      assert(first[name] > 0 and second[name] > 0)
      assert.equal(memory[name], first[name] + second[name])
    end
    assert.equal(model.page_bytes, first.page_bytes + second.page_bytes)
    assert.equal(whole_model.position_bytes, model.position_bytes)
    h.says(model:describe(), "; layers 1 … 1 on cpu: ")
    assert.equal(DEVICE, model.device)
    local _, words = h.run("greedy -n 1 --gpu-layers 0 --verbose --device " .. DEVICE)
    h.says(words, "memory on cpu: layers 1 … 4, weights ", "memory on " .. DEVICE .. ": the head, ")
  end)

  it("finds what the CPU made of its weights at the next start, of this cut alone", function()
    local folder = h.scratch "weights"
    local function from(n)
      local model <close> = load("llama-f16", n, {weight_cache = folder})
      return model:memory().weights_from
    end
    assert.same({"file", "image", "file", "image"}, {from(1), from(1), from(0), from(1)})
  end)

  it("gives its pages back", function()
    local model <close> = load("llama-f16", 1)
    collectgarbage()
    local before = llm.stats().pages_used
    local kv = model:cache()
    model:forward(kv, ids)
    assert.equal(before + 2, llm.stats().pages_used)
    kv:close()
    assert.equal(before, llm.stats().pages_used)
  end)

  it("serves many prompts with the results of each alone, when pages are short too", function()
    local prompts = {}
    for i = 1, 4 do -- of a page, nearly
      local own = table.concat(ids_of(i % 3, 30), ",")
      prompts[i] = ('{"prompt": [%s], "seed": %d}\n'):format(own, i)
    end
    local file = h.write(h.scratch "many.jsonl", table.concat(prompts))
    local run = ("sample -n 5 --temperature 0.8 --device %s --gpu-layers 1 --invariant "
      .. "--ordered --quiet --ctx 64 --prompts %s"):format(DEVICE, h.quote(file))
    local function lines(more)
      local out, err, code = h.run(run .. more)
      assert.equal(0, code, err)
      return (out:gsub('"timings":%b{}', ""))
    end
    local alone = lines " --jobs 1"
    assert.equal(alone, lines " --jobs 4")
    assert.equal(alone, lines " --jobs 4 --pages 4")
  end)
end)

describe("gpu_layers", function()
  it("must be an integer of at least 0", function()
    for _, bad in ipairs {-1, 1.5} do
      local ok, err = pcall(llm.load, nil, {gpu_layers = bad})
      assert.same({false, "misuse"}, {ok, err.kind})
      h.says(err.message, "gpu_layers must be ")
      local _, words, code = h.run("greedy -n 1 --gpu-layers " .. bad)
      assert.equal(2, code)
      h.says(words, "--gpu-layers: '" .. bad .. "' is not an integer of at least 0")
    end
  end)

  it("is refused on a device that is no GPU", function()
    for _, device in ipairs {"cpu", "ref"} do
      local model, message = llm.load(nil, {device = device, gpu_layers = 1})
      assert.same({nil, "gpu_layers asks for a GPU: device " .. device .. " is none"},
        {model, message})
    end
  end)

  it("does nothing where auto found no GPU, and a line says so", function()
    local run = "greedy -n 4 -p 'The sea' --cuda-lib /none.so"
    local out, words, code = h.run(run .. " --gpu-layers 1", nil, "LLMLUA_DEVICE=")
    assert.equal(0, code, words)
    h.says(words, "--gpu-layers does nothing: no GPU is used, the model is on device cpu")
    assert.equal(out, (h.run(run, nil, "LLMLUA_DEVICE=")))
    local _, quiet = h.run(run .. " --gpu-layers 1 --quiet", nil, "LLMLUA_DEVICE=")
    assert.equal("", quiet)
  end)

  it("that would fit is named where a model does not fit", function()
    if not whole_model or DEVICE ~= "cuda-emulated" then return pending "needs the emulated GPU" end
    local run = "greedy -m shape:smollm2-q4_1 -p a -n 1 --ctx 64 --device cuda-emulated"
    local memory = "LLMLUA_EMULATION_MEMORY=80000000"
    local _, words, code = h.run(run, nil, memory)
    assert.equal(1, code)
    local n = words:match "out of memory: %d+ bytes asked .*; %-%-gpu%-layers (%d+) would fit"
    assert(n and tonumber(n) > 5 and tonumber(n) < 30, words)
    _, words, code = h.run(run .. " --gpu-layers " .. n, nil, memory)
    assert.equal(0, code, words)
    _, words, code = h.run(run .. " --gpu-layers 29", nil, memory)
    assert.equal(1, code)
    h.says(words, ("; --gpu-layers %s would fit"):format(n))
    _, words = h.run(run, nil, "LLMLUA_EMULATION_MEMORY=20000000")
    assert(words:find "out of memory" and not words:find "would fit", words)
  end)
end)
