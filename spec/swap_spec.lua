-- Sequences that are set aside on a device with its own memory: their pages are copied to the
-- host's memory and back. On the emulated GPU.
local h = require "spec.helper"
local json = require "llm.json"
local jobs = require "spec.jobs"
local llm = require "llm"
local requests = require "llm.requests"

local function open(options)
  options.device, options.invariant, options.ctx, options.eog = "cuda-emulated", true, 256, {}
  return h.tiny("llama-f32", options)
end

local ok, reason = pcall(function() open({pages = 4}):close() end)

local ids = {}
for i = 1, 100 do ids[i] = i * 37 % 200 + 3 end

-- Makes an evicted cache whole. Returns how many ids were computed for it.
local function refill(kv)
  local computed = 0
  while true do
    local request = requests.refill(kv, {})
    if not request then return computed end
    assert(requests.serve {request})
    local state, missing, _, n_fed, n_reused = requests.state(request)
    assert.same({"done", 0}, {state, missing})
    computed = computed + n_fed - n_reused
    requests.close(request)
  end
end

local function line(result)
  result.timings = nil
  return json.encode(result)
end

describe("a sequence set aside on a GPU", function()
  if not ok then
    pending("needs the emulated plug-in: " .. tostring(reason))
    return
  end

  it("comes back by one copy of its pages each way, with one wait and the same bits", function()
    local model <close> = open {pages = 64}
    local kv <close> = model:cache()
    model:forward(kv, ids)
    local expected = model:forward(kv:fork(), 5):tolist()
    local fork <close> = kv:fork()
    model:forward(fork, {7, 8}):tolist()
    collectgarbage()
    local before = llm.stats()
    requests.evict(kv)
    requests.evict(fork)
    local out = llm.stats()
    assert.equal(0, out.pages_used)
    -- four pages of 100 ids, and of the fork that which is its own
    assert.equal(5 * model.page_bytes, out.bytes_down - before.bytes_down)
    assert.equal(2, out.syncs - before.syncs)
    assert.same({0, 0}, {refill(kv), refill(fork)})
    local back = llm.stats()
    assert.equal(5 * model.page_bytes, back.bytes_up - out.bytes_up)
    assert.equal(out.syncs, back.syncs)
    assert.equal(out.forward_rows, back.forward_rows)
    assert.same(expected, model:forward(kv, 5):tolist())
    assert.same(102, #fork)
  end)

  it("is recomputed where no host memory may be taken, with the same bits", function()
    local model <close> = open {pages = 64, swap_pages = 0}
    local kv <close> = model:cache()
    model:forward(kv, ids)
    local expected = model:forward(kv:fork(), 5):tolist()
    local before = llm.stats().bytes_down
    requests.evict(kv)
    assert.equal(before, llm.stats().bytes_down)
    assert.equal(100, refill(kv))
    assert.same(expected, model:forward(kv, 5):tolist())
  end)

  for _, strategy in ipairs {{"greedy", "-n 66", 5, 3}, {"beam", "-n 34 --beam 2", 5, 4}} do
    it("ends as it would with many pages, none recomputed: " .. strategy[1], function()
      local wide <close> = open {pages = 200}
      local narrow <close> = open {pages = strategy[3]}
      local poor <close> = open {pages = strategy[3], swap_pages = 1}
      local function run(model)
        local list, lines, recomputed = {}, {}, 0
        collectgarbage()
        for i = 1, strategy[4] do
          list[i] = jobs.make(model, strategy[1], strategy[2], {3 + i, 4, 5})
        end
        local before = llm.stats().bytes_up
        for i, result in ipairs((jobs.run_all(list, 4))) do
          assert.is_nil(result.error, result.error and result.error.message)
          recomputed = recomputed + result.timings.recomputed_tokens
          lines[i] = line(result)
        end
        assert.equal(0, llm.stats().pages_used)
        return lines, recomputed, llm.stats().bytes_up - before
      end
      local alone, none, few_bytes = run(wide)
      local lines, recomputed, bytes = run(narrow)
      assert.same(alone, lines)
      assert.same({0, 0}, {none, recomputed})
      assert(bytes > few_bytes + narrow.page_bytes, bytes .. " bytes up, " .. few_bytes)
      lines, recomputed = run(poor)
      assert.same(alone, lines)
      assert(recomputed > 0)
    end)
  end

  it("is of no concern to the CPU, which takes the option and does nothing", function()
    local model <close> = assert(llm.load(h.data .. "models/llama-f32.gguf",
      {device = "cpu", pages = 8, swap_pages = 3}))
    local kv <close> = model:cache()
    model:forward(kv, ids)
    requests.evict(kv)
    assert.equal(100, refill(kv))
    assert.is_false(pcall(llm.load, nil, {swap_pages = -1}))
  end)
end)
