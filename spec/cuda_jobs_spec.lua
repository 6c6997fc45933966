-- Jobs side by side on a device with memory of its own: what all of them do with their logits is
-- queued, and equal operations are one launch. On the emulation, as cuda_spec.lua.
local llm = require "llm"
local jobs = require "spec.jobs"

local model, reason = llm.load(nil, {device = "cuda-emulated", eog = {}, invariant = true})

local PROMPTS = {"And the LORD said unto", "In the beginning", "The king", "And it came to pass",
  "Behold", "And the LORD said unto Moses, Go", "Now these are the names", "The sea"}

local CHAIN = "--temperature 0.8 --top-k 40 --top-p 0.95"

describe("jobs on a GPU", function()
  if not model then
    pending("needs the emulated plug-in: " .. tostring(reason))
    return
  end

  local function run(n, strategy, arguments)
    local list = {}
    for i = 1, n do list[i] = jobs.make(model, strategy, arguments, PROMPTS[i]) end
    local before = llm.stats()
    local results = jobs.run_all(list, n)
    local after, spent = llm.stats(), {}
    for _, name in ipairs {"launches", "syncs", "bytes_up", "passes"} do
      spent[name] = after[name] - before[name]
    end
    return results, spent
  end

  -- What a step of n jobs costs: what three more of them add, which are alike.
  local function step(n, strategy, arguments)
    local _, few = run(n, strategy, arguments .. " -n 3")
    local _, many = run(n, strategy, arguments .. " -n 6")
    local cost = {}
    for name in pairs(few) do cost[name] = (many[name] - few[name]) / 3 end
    assert.equal(1, cost.passes)
    return cost
  end

  for strategy, arguments in pairs {greedy = "", sample = CHAIN} do
    it("launch as much for eight as for two, and wait once a step: " .. strategy, function()
      local two, eight = step(2, strategy, arguments), step(8, strategy, arguments)
      assert.equal(two.launches, eight.launches)
      assert(two.syncs <= 1 and eight.syncs <= 1, eight.syncs .. " waits")
      assert(eight.bytes_up < 2048, eight.bytes_up .. " bytes up")
    end)
  end

  it("give the texts that each gives alone", function()
    local results = run(4, "sample", CHAIN .. " -n 5")
    for i = 1, 4 do
      local alone = jobs.run(model, "sample", CHAIN .. " -n 5", PROMPTS[i])
      assert.is_nil(results[i].error)
      assert.same(alone.ids, results[i].ids)
    end
  end)

  it("may close and change what is queued", function()
    local SOURCE = [[
      local kv = model:cache()
      local logits = model:forward(kv, prompt)
      for _ = 1, 4 do
        local id, cut = logits:argmax(), logits:top_k(3)
        cut:top_k_(2)
        local second = cut:mask(%s):argmax()
        logits:set_at_({1}, 0)
        logits:close()
        cut:close()
        emit(id)
        logits = model:forward(kv, second)
      end]]
    local results = run(3, SOURCE:format "id", "-n 4")
    for i = 1, 3 do
      assert.is_nil(results[i].error, results[i].error and results[i].error.message)
      assert.same(jobs.run(model, SOURCE:format "id:tolist()", "-n 4", PROMPTS[i]).ids,
        results[i].ids)
    end
  end)

  it("fail alone where a row is NaN", function()
    local SOURCE = [[
      local kv = model:cache()
      local logits = model:forward(kv, prompt)
      while true do
        if #kv == %d then logits = logits * (0 / 0) end
        local id = logits:argmax()
        if emit(id) then return end
        logits = model:forward(kv, id)
      end]]
    local n = #model:encode(PROMPTS[3])
    local list = {}
    for i = 1, 4 do
      list[i] = jobs.make(model, SOURCE:format(i == 3 and n + 1 or -1), "-n 4", PROMPTS[i])
    end
    for i, result in ipairs((jobs.run_all(list, 4))) do
      if i == 3 then
        assert.equal("nan", result.error.kind)
      else
        assert.same(jobs.run(model, "greedy", "-n 4", PROMPTS[i]).ids, result.ids)
      end
    end
  end)

  it("read numbers of their rows with one wait for all", function()
    local tensors, kvs = {}, {}
    for i = 1, 3 do
      kvs[i] = model:cache()
      model:forward(kvs[i], model:encode(PROMPTS[i]))
    end
    local logits = model:forward(kvs, {3, 4, 5})
    local before = llm.stats().syncs
    for i = 1, 3 do tensors[i] = (logits * i):entropy() end
    for i = 1, 3 do tensors[i] = tensors[i]:tolist() end
    assert.equal(1, llm.stats().syncs - before)
  end)
end)
