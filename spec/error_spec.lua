local llm = require "llm"

local function fail(f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.equal("llm.Error", llm.type(err))
  return err
end

describe("an llm.Error", function()
  it("has a kind, a message and a traceback", function()
    local err = fail(llm.rng, 4.5)
    assert.equal("misuse", err.kind)
    assert.equal("seed must be an integer, got 4.5", err.message)
    assert(err.traceback:find "stack traceback", err.traceback)
    local function here() return llm.rng "x" end
    assert(fail(function() return (here()) end).traceback:find("error_spec.lua", 1, true))
  end)

  it("is its message as a string and joins with strings", function()
    local err = fail(llm.rng, "4")
    assert.equal("seed must be an integer, got a string", tostring(err))
    assert.equal("oh: seed must be an integer, got a string", "oh: " .. err)
    assert.equal("seed must be an integer, got a string!", err .. "!")
    assert.equal("3 seed must be an integer, got a string", "3 " .. err)
  end)

  it("can be made for what scripts raise themselves", function()
    local err = fail(function() error(llm.error("misuse", "top_p must be 0 to 1, got 2")) end)
    assert.same({"misuse", "top_p must be 0 to 1, got 2"}, {err.kind, err.message})
    assert(err.traceback:find("error_spec.lua", 1, true))
    assert.equal("there", llm.error("script", "x", "there").traceback)
    assert(fail(llm.error, "other", "x").message:find "known: misuse, cache_full, out_of_memory")
    fail(llm.error, "misuse", 5)
  end)

  it("lists the known options when one is unknown", function()
    local err = fail(llm.load, "nothing.gguf", {treads = 2})
    assert.equal("unknown option treads; known: "
      .. "device, threads, ctx, kv, pages, swap_pages, max_rows, piece, eog, "
      .. "weight_cache, cuda_lib, invariant, f16_as_bf16, random, gpu_layers",
      err.message)
    err = fail(llm.load, "nothing.gguf", {"cpu"})
    assert(err.message:find "^unknown option 1; known: device")
    fail(llm.load, "nothing.gguf", "cpu")
  end)

  it("is raised for every wrong self", function()
    local objects = {llm.tensor {{1}}, llm.rng(), llm.seq()}
    for _, object in ipairs(objects) do
      for name, method in pairs(debug.getmetatable(object).__methods) do
        if type(method) == "function" then
          for _, bad in ipairs {1, "x", {}, io.stdout, false} do
            local err = fail(method, bad)
            assert.equal("misuse", err.kind, name)
          end
          fail(method)
        end
      end
    end
  end)

  it("is raised for an assignment", function()
    assert.equal("llm.Tensor cannot be assigned to",
      fail(function() llm.tensor({{1}})[1] = 2 end).message)
    fail(function() llm.rng().seed = 2 end)
  end)

  it("does not replace errors of Lua", function()
    local ok, err = pcall(function() return nil .. "x" end)
    assert.is_false(ok)
    assert.equal("string", type(err))
  end)
end)

describe("llm.type", function()
  it("names the class of a value of llm and is nil for others", function()
    assert.equal("llm.Tensor", llm.type(llm.tensor {{1}}))
    assert.equal("llm.Logits", llm.type(llm.logits {{1}}))
    assert.equal("llm.Rng", llm.type(llm.rng()))
    assert.equal("llm.Seq", llm.type(llm.seq()))
    assert.equal(1, select("#", llm.type(5)))
    assert.equal(1, select("#", llm.type(io.stdout)))
    assert.is_nil(llm.type(5))
    assert.is_nil(llm.type {})
    assert.is_nil(llm.type "x")
    assert.is_nil(llm.type(io.stdout))
    assert.is_nil(llm.type())
  end)
end)

describe("llm.stats", function()
  it("is a table of numbers", function()
    local stats = llm.stats()
    for _, name in ipairs {"launches", "syncs", "bytes_up", "bytes_down", "forward_rows",
      "prefix_tokens",
      "pages_used", "tensor_bytes"} do
      assert.equal("integer", math.type(stats[name]), name)
    end
    assert.equal("float", math.type(stats.lua_s))
    assert.equal("float", math.type(stats.step_s))
  end)
end)

describe("llm.seq", function()
  it("holds prompt and output", function()
    local seq = llm.seq {5, 6}
    assert.same({2, 2, 1}, {seq.n_prompt, #seq, seq.stream})
    seq:push(7)
    seq:push(llm.tensor {{8}})
    assert.equal(4, #seq)
    assert.same({5, 6, 7, 8}, seq.ids)
    assert.equal(2, seq.n_prompt)
    assert.same({}, llm.seq().ids)
    assert.equal("llm.Seq of 4 ids", tostring(seq))
  end)

  it("keeps the id that a tensor held when it was pushed", function()
    local seq, id = llm.seq {1}, llm.tensor {{2}}
    seq:push(id)
    id:add_(5)
    seq:push(id)
    id:close()
    assert.same({1, 2, 7}, seq.ids)
  end)

  it("forks with an id appended, and fields copied one level deep", function()
    local seq = llm.seq {1}
    local key = {}
    seq[key] = {mu = 1}
    seq.stream = 4
    local fork = seq:fork(2)
    seq:push(3)
    assert.same({1, 2}, fork.ids)
    assert.same({1, 3}, seq.ids)
    assert.equal(seq[key], fork[key])
    assert.equal(4, fork.stream)
    fork[key] = nil
    assert.is_not_nil(seq[key])
    assert.same({1, 3}, seq:fork().ids)
    assert.equal(1, fork.n_prompt)
  end)

  it("refuses what is no id", function()
    local seq = llm.seq {1}
    for _, bad in ipairs {-1, 1.5, "1", {1}, llm.tensor {{1.5}}, llm.tensor {{1, 2}}} do
      assert.equal("misuse", fail(seq.push, seq, bad).kind)
    end
    fail(seq.push, seq)
    fail(llm.seq, {1, "2"})
    fail(function() seq.ids = {} end)
    fail(function() seq.n_prompt = 4 end)
    assert.same({1}, seq.ids)
  end)
end)
