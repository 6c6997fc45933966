-- model:profile(): what the operations of passes cost.
local h = require "spec.helper"
local llm = require "llm"

local prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3,
  2, 7, 9, 5, 0, 2, 8, 8, 4}

-- Sums over the costs of a kind.
local function sum(profile, kind)
  local s = {calls = 0, rows = 0, bytes = 0, operations = 0, seconds = 0, input_s = 0,
    wait_s = 0}
  for _, cost in ipairs(profile.costs) do
    if not kind or cost.kind == kind then
      for field in pairs(s) do s[field] = s[field] + cost[field] end
    end
  end
  return s
end

local function profiled(model, f)
  model:set_profile(true)
  f()
  local profile = model:profile()
  model:set_profile(false)
  return profile
end

for _, device in ipairs {"ref", "cpu"} do
  describe("a profile on " .. device, function()
    local model
    setup(function() model = h.tiny("llama-q4_1", {device = device, threads = 2}) end)
    teardown(function() model:close() end)

    it("is nil until it is set, and after it is dropped", function()
      assert.is_nil(model:profile())
      model:set_profile(true)
      assert.is_table(model:profile())
      model:set_profile(false)
      assert.is_nil(model:profile())
      local is_fine, err = pcall(model.set_profile, model, 1)
      assert(not is_fine and err.message:find("on must be", 1, true), tostring(err))
    end)

    it("has the operations of the plan in its order", function()
      local costs = profiled(model, function() end).costs
      local kinds = {}
      for kind in (model:describe():match "plan:\n(.*)"):gmatch "%d+  (%S+)[^\n]*\n" do
        kinds[#kinds + 1] = kind
      end
      assert.equal(#kinds, #costs)
      for i, cost in ipairs(costs) do
        assert.equal(kinds[i], cost.kind)
        assert.equal(0, cost.calls)
        assert(cost.kind ~= "matmul" or cost.weight and cost.format)
      end
      assert.equal(0, costs[1].layer)
      assert.equal(model.n_layers + 1, costs[#costs].layer)
    end)

    it("counts rows, bytes and operations of products", function()
      local kv <close> = model:cache()
      local profile = profiled(model, function()
        model:forward(kv, prompt)
        model:forward(kv, 5)
      end)
      local n_matrix = 0
      for _, cost in ipairs(profile.costs) do
        assert.equal(2, cost.calls)
        assert.equal(cost.layer > model.n_layers and 2 or #prompt + 1, cost.rows)
        if cost.kind == "matmul" then
          -- 20 bytes of Q4_1 hold 32 values, 34 of Q8_0
          local per_byte = ({Q4_1 = 32 / 20, Q8_0 = 32 / 34, F32 = 1 / 4, F16 = 1 / 2})[cost.format]
          assert.equal(cost.bytes / 2 * per_byte * 2 * cost.rows, cost.operations)
          n_matrix = n_matrix + cost.bytes / 2
        end
      end
      local vectors = model.weight_bytes_step - n_matrix
      assert(vectors >= 0 and vectors < 0.1 * model.weight_bytes_step, vectors)
    end)

    it("counts keys and values, those that sequences share once", function()
      local kv <close> = model:cache()
      model:forward(kv, prompt)
      local fork <close> = kv:fork()
      local shared = profiled(model, function() model:forward({kv, fork}, {5, 6}) end)
      -- the first page is shared, the rest each has to itself
      local n = #prompt + 1
      assert.equal((n + n - 32) * model.position_bytes, sum(shared, "attend").bytes)
      assert.equal(2 * model.position_bytes, sum(shared, "append").bytes)
      local alone = profiled(model, function() model:forward(kv, 5) end)
      assert.equal((n + 1) * model.position_bytes, sum(alone, "attend").bytes)
      assert.equal(sum(shared, "attend").operations / (2 * n),
        sum(alone, "attend").operations / (n + 1))
    end)

    it("accounts for the time of runs, and of operations on tensors", function()
      local kv <close> = model:cache()
      local logits
      local before = llm.stats().step_s
      local profile = profiled(model, function()
        for _ = 1, 20 do logits = model:forward(kv, prompt[1]) end
        logits:log_softmax():tolist()
      end)
      local all = sum(profile)
      assert(all.seconds > 0 and all.seconds + all.wait_s <= profile.run_s, profile.run_s)
      assert(all.input_s <= all.seconds)
      assert(device == "ref" or all.input_s > 0)
      assert(profile.run_s <= llm.stats().step_s - before)
      assert(profile.tensor_s > 0)
      assert(sum(profile, "matmul").seconds > 0 and sum(profile, "attend").seconds > 0)
    end)

    it("changes no result", function()
      local kv <close> = model:cache()
      local other <close> = model:cache()
      local expected = model:forward(kv, prompt):tolist()
      profiled(model, function()
        assert.same(expected, model:forward(other, prompt):tolist())
      end)
    end)

    if llm.fault then
      it("for which memory is short leaves it off, and a pass leaves its cache", function()
        local kv <close> = model:cache()
        model:forward(kv, prompt)
        local expected = model:forward(kv:fork(), 5):tolist()
        local n, n_failed = 0, 0
        repeat
          n = n + 1
          llm.fault(n)
          local fork
          local is_fine, err = pcall(function()
            model:set_profile(true)
            fork = kv:fork()
            return model:forward(fork, 5)
          end)
          llm.fault(0)
          if is_fine then
            assert.same(expected, err:tolist())
          else
            n_failed = n_failed + 1
            assert.equal("out_of_memory", err.kind)
            if fork then assert.equal(#prompt, #fork) end
          end
          if fork then fork:close() end
          model:set_profile(false)
        until is_fine
        assert(n_failed > 2, n_failed)
      end)
    end
  end)
end

describe("a window", function()
  it("bounds the keys and values that are read", function()
    local model <close> = h.tiny "gemma3-f32"
    local window = tonumber(model:describe():match "attend[^\n]*window (%d+)")
    local ids = {}
    for i = 1, window + 9 do ids[i] = i % 50 end
    local kv <close> = model:cache()
    local profile = profiled(model, function()
      model:forward(kv, ids, {rows = 0})
      model:set_profile(true)
      model:forward(kv, 7)
    end)
    local per_layer = model.position_bytes / model.n_layers
    local text = model:describe()
    local windows = {}
    for line in text:gmatch "[^\n]*attend[^\n]*" do
      windows[#windows + 1] = line:find "window" and true or false
    end
    local i = 0
    for _, cost in ipairs(profile.costs) do
      if cost.kind == "attend" then
        i = i + 1
        assert.equal((windows[i] and window or #ids + 1) * per_layer, cost.bytes)
      end
    end
    assert.equal(#windows, i)
  end)
end)
