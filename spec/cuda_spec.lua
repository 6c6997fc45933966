-- What the CUDA backend asks of a GPU: few launches, no waits, little traffic. On the emulation,
-- which executes the same sources, or on LLMLUA_TEST_DEVICE; `spec_*_cuda` of ctest run the other
-- specs there.
local llm = require "llm"
local h = require "spec.helper"

local function open(options)
  options = options or {}
  options.device = options.device or h.device or "cuda-emulated"
  return llm.load(nil, options)
end

local model, reason = open()

-- What f costs, as llm.stats counts it.
local function cost(f)
  local before = llm.stats()
  f()
  local after, spent = llm.stats(), {}
  for name, value in pairs(after) do
    if math.type(value) == "integer" then spent[name] = value - before[name] end
  end
  return spent
end

describe("the CUDA backend", function()
  if not model then
    pending("needs a plug-in: " .. tostring(reason))
    return
  end

  -- Greedy steps from after the prompt on; warm: a step of this kind has been captured.
  local function greedy(n, kv, logits)
    for _ = 1, n do logits = model:forward(kv, logits:argmax()) end
    return logits
  end

  local function begin(text)
    local kv = model:cache()
    return kv, greedy(3, kv, model:forward(kv, model:encode(text)))
  end

  it("decodes with at most 7 launches a layer", function()
    local kv, logits = begin "The sea"
    local spent = cost(function() greedy(8, kv, logits) end)
    local a_step = spent.launches / 8
    assert(a_step <= 7 * model.n_layers + 5, ("%g launches a step"):format(a_step))
    assert(a_step >= model.n_layers, "launches are counted")
  end)

  it("never waits in a loop that feeds choices back", function()
    local kv, logits = begin "The sea"
    local spent = cost(function() greedy(8, kv, logits) end)
    assert.same(0, spent.syncs)
  end)

  it("sends less than 4 KB to the device and 4 bytes back in a step", function()
    local kv, logits = begin "The sea"
    local spent = cost(function() greedy(8, kv, logits) end)
    assert(spent.bytes_up <= 8 * 4096, spent.bytes_up .. " bytes up")
    assert(spent.bytes_down <= 8 * 4, spent.bytes_down .. " bytes down")
  end)

  it("tells a cache's tokens after such a loop", function()
    local kv, logits = begin "The sea"
    greedy(8, kv, logits)
    local ref <close> = assert(llm.load(nil, {device = "ref"}))
    local other = ref:cache()
    local row = ref:forward(other, ref:encode "The sea")
    for _ = 1, 11 do row = ref:forward(other, row:argmax()) end
    assert.same(other:tokens(), kv:tokens())
    assert.same(other:tokens(), kv:fork():tokens())
  end)

  it("moves 12 bytes a candidate to the host in a beam step", function()
    local kvs = {(begin "The sea")}
    for i = 2, 4 do kvs[i] = kvs[1]:fork() end
    local logits = model:forward(kvs, {5, 6, 7, 8})
    local function step()
      local scores, ids, rows = logits:log_softmax():topk_joint(8)
      local list, from = ids:tolist(), rows:tolist()
      scores:tolist()
      kvs = llm.reorder(kvs, {from[1], from[2], from[3], from[4]})
      logits = model:forward(kvs, {list[1], list[2], list[3], list[4]})
    end
    step()
    local spent = cost(step)
    assert(spent.bytes_down <= 8 * 12, spent.bytes_down .. " bytes down")
  end)

  it("waits once a step for a batch of jobs", function()
    local lines = {}
    for i = 1, 6 do lines[i] = ("The %d sea"):format(i) end
    local kvs, logits = {}, {}
    for i, text in ipairs(lines) do
      kvs[i] = model:cache()
      logits[i] = model:forward(kvs[i], model:encode(text))
    end
    local spent = cost(function()
      local ids = {}
      for i = 1, 6 do ids[i] = logits[i]:argmax() end
      for i = 1, 6 do ids[i] = ids[i]:item() end
    end)
    assert(spent.syncs <= 6, spent.syncs .. " waits")
  end)
end)
