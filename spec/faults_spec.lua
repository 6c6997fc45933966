-- Every allocation of the engine made to fail once, in turn. Runs in the build with LLMLUA_FAULTS;
-- the sanitizers of that build watch for leaks.
local h = require "spec.helper"
local llm = require "llm"

local ids = {8, 195, 107, 201, 307, 11, 99, 241, 53, 265, 123, 299, 70, 82, 294, 118, 243, 90, 261,
  53, 17, 4, 200, 180, 77, 13, 250, 66, 31, 9, 140, 2, 55, 88, 19}

-- Calls body with the n-th allocation failing, for n = 1, 2 … until a call goes through untouched.
-- Returns how many calls failed.
local function each_failure(body)
  local n, failures = 0, 0
  while true do
    n = n + 1
    collectgarbage()
    local before = llm.allocations()
    llm.fault(n)
    local ok, err = pcall(body)
    llm.fault(0)
    if not ok then
      failures = failures + 1
      assert(type(err) ~= "string" and err.kind == "out_of_memory",
        "failure " .. n .. ": " .. tostring(err))
    end
    if ok and llm.allocations() - before < n then return failures end
    assert(n < 20000, "never got through")
  end
end

describe("beams that see their siblings", function()
  if not llm.fault_sharing then
    pending "needs a build with LLMLUA_FAULTS"
    return
  end

  it("are noticed by what the specs compare", function()
    local model <close> = h.tiny("llama-f32")
    local function diverge()
      local kv <close> = model:cache()
      model:forward(kv, ids)
      local fork <close> = kv:fork()
      model:forward(kv, {1, 2})
      model:forward(fork, {3, 4})
      return model:forward({kv, fork}, {5, 6}):lists()
    end
    local right = diverge()
    llm.fault_sharing(true)
    local wrong = diverge()
    llm.fault_sharing(false)
    assert.are_not.same(right[1], wrong[1])
    assert.same(right, diverge())
  end)

  it("change the text of a beam search", function()
    local function beams(model)
      local kvs, sums = {model:cache()}, {0}
      local logits = model:forward(kvs, {ids})
      local last
      for _ = 1, 12 do
        local scores, tokens, rows = (logits:log_softmax() + sums):topk_joint(4)
        kvs, sums, last = llm.reorder(kvs, rows), scores:tolist(), tokens
        logits = model:forward(kvs, tokens)
      end
      local texts = {last:tolist()}
      for i, kv in ipairs(kvs) do
        texts[i + 1] = kv:tokens()
        kv:close()
      end
      return texts
    end
    local model <close> = h.tiny("llama-f32")
    local right = beams(model)
    llm.fault_sharing(true)
    local wrong = beams(model)
    llm.fault_sharing(false)
    assert.are_not.same(right, wrong)
  end)
end)

describe("an allocation that fails", function()
  if not llm.fault then
    pending "needs a build with LLMLUA_FAULTS"
    return
  end

  for _, name in ipairs {"llama-q4_1", "gpt2-f32", "llama256-q4_k", "gemma3-f32"} do
    it("while loading " .. name .. " gives nil and a message", function()
      local failures = 0
      each_failure(function()
        local path = h.data .. "models/" .. name .. ".gguf"
        local model, message = llm.load(path, {device = "cpu", threads = 1, pages = 4})
        if model then
          model:close()
        else
          failures = failures + 1
          assert(message:find "memory", message)
        end
      end)
      assert(failures > 20, failures)
    end)
  end

  it("while loading a model that is split gives nil and a message", function()
    local path = h.data .. "models/gemma3-f32.gguf"
    local opts = {device = "cuda-emulated", gpu_layers = 2, threads = 1, pages = 4}
    local emulated = llm.load(path, opts)
    if not emulated then return pending "needs the emulated plug-in" end
    emulated:close()
    local failures = 0
    each_failure(function()
      local model, message = llm.load(path, opts)
      if model then return model:close() end
      failures = failures + 1
      assert(message:find "memory" and not message:find "would fit", message)
    end)
    assert(failures > 20, failures)
  end)

  it("while weights are kept or read again fails the load or nothing", function()
    local path = h.data .. "models/llama-q4_1.gguf"
    local folder = h.scratch "weights"
    for _, kept in ipairs {false, true} do
      each_failure(function()
        if not kept then os.execute(("rm -rf '%s'"):format(folder)) end
        local opts = {device = "cpu", threads = 1, pages = 4, weight_cache = folder}
        local model, message = llm.load(path, opts)
        assert(model or message:find "memory", message)
        if model then model:close() end
      end)
    end
    local model <close> = assert(llm.load(path, {device = "cpu", weight_cache = folder}))
    assert.equal("image", model:memory().weights_from)
  end)

  for _, device in ipairs {"ref", "cpu"} do
    it("in forward, fork, score and choices on " .. device .. " leaves the handles", function()
      local model <close> = h.tiny("llama-q4_1", {device = device, pages = 8})
      local kv <close> = model:cache()
      model:forward(kv, ids)
      collectgarbage()
      local pages = llm.stats().pages_used
      local expected = model:forward(kv:fork(), 5):tolist()
      collectgarbage()
      local failures = each_failure(function()
        local fork <close> = kv:fork()
        local logits = model:forward(fork, 5)
        logits:top_k(5):top_p(0.9):log_softmax():topk_joint(4)
        logits:argmax():item()
        logits:sample(llm.rng(1)):item()
        model:score(fork, {7, 8, 9})
        local kvs = llm.reorder({fork, fork:fork(3)}, {1, 1, 2})
        for _, one in ipairs(kvs) do one:close() end
        model:encode "In the beginning"
      end)
      assert(failures > 10, failures)
      collectgarbage()
      assert.equal(pages, llm.stats().pages_used)
      assert.equal(#ids, #kv)
      assert.same(expected, model:forward(kv:fork(), 5):tolist())
    end)
  end

  it("while saving and restoring gives nil and a message", function()
    local model <close> = h.tiny("llama-q4_1", {pages = 8})
    local kv <close> = model:cache()
    model:forward(kv, ids)
    local path = h.scratch("faults.kv")
    each_failure(function()
      local ok, message = kv:save(path)
      assert(ok or message:find "memory")
    end)
    assert(kv:save(path))
    each_failure(function()
      local again, message = model:restore(path)
      assert(again or message:find "memory")
      if again then again:close() end
    end)
  end)
end)
