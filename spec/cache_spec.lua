local h = require "spec.helper"
local llm = require "llm"

local function fails(kind, pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.equal(kind, err.kind, tostring(err))
  assert(err.message:find(pattern), err.message)
end

local function ids_of(first, count, n)
  local ids = {}
  for i = 1, count do ids[i] = (first * 31 + i * 7) % n end
  return ids
end

describe("a Cache", function()
  local model
  setup(function() model = h.tiny "llama-f32" end)
  teardown(function() model:close() end)

  local function fed(ids)
    local kv = model:cache()
    model:forward(kv, ids)
    return kv
  end
  local function next_row(kv) return model:forward(kv:fork(), 9):tolist() end

  it("holds tokens", function()
    local kv = fed {5, 6, 7, 8}
    assert.equal(4, #kv)
    assert.same({5, 6, 7, 8}, kv:tokens())
    assert.same({6, 7}, kv:tokens(2, 2))
    assert.same({7, 8}, kv:tokens(3))
    assert.same({}, kv:tokens(5))
    assert.same({}, kv:tokens(1, 0))
    fails("misuse", "first must be 1 to 5, got 6", kv.tokens, kv, 6)
    fails("misuse", "count must be 0 to 2, got 3", kv.tokens, kv, 3, 3)
    assert.equal(model, kv.model)
    assert.equal("llm.Cache of 4 tokens", tostring(kv))
    assert.same({}, model:cache():tokens())
  end)

  it("forks at any length; both sides go on as if alone", function()
    local ids = ids_of(1, 70, model.vocab_size)
    local kv = fed(ids)
    for _, n in ipairs {0, 1, 31, 32, 33, 64, 70} do
      local fork = kv:fork(n)
      assert.equal(n, #fork)
      local own = ids_of(n + 2, 5, model.vocab_size)
      local logits = model:forward(fork, own)
      local fresh = model:cache()
      if n > 0 then model:forward(fresh, {table.unpack(ids, 1, n)}) end
      assert.same(model:forward(fresh, own):tolist(), logits:tolist())
      assert.same(ids, kv:tokens())
    end
    fails("misuse", "n must be 0 to 70, got 71", kv.fork, kv, 71)
    fails("misuse", "n must be an integer, got a string", kv.fork, kv, "4")
  end)

  it("truncates to n tokens as if it had held no more", function()
    local ids = ids_of(3, 70, model.vocab_size)
    for _, n in ipairs {70, 65, 64, 33, 1} do
      local kv = fed(ids)
      kv:truncate(n)
      assert.equal(n, #kv)
      assert.same(next_row(fed {table.unpack(ids, 1, n)}), next_row(kv))
    end
    local kv = fed(ids)
    kv:truncate(0)
    assert.same(model:forward(model:cache(), {4, 5}):tolist(), model:forward(kv, {4, 5}):tolist())
    fails("misuse", "n must be 0 to 2, got 3", kv.truncate, kv, 3)
  end)

  it("syncs to a text, leaving what must be fed", function()
    local kv = fed {1, 2, 3, 4}
    assert.same({9, 9}, kv:sync {1, 2, 9, 9})
    assert.equal(2, #kv)
    assert.same({2}, kv:sync {1, 2})
    assert.equal(1, #kv)
    kv = fed {1, 2, 3, 4}
    assert.same({3, 4}, kv:sync({1, 2, 3, 4}, 2))
    assert.same({}, kv:sync({1, 2}, 0))
    assert.same({7}, kv:sync(llm.tensor {7}))
    assert.equal(0, #kv)
    fails("misuse", "1 ids to feed asked for, of a list of 0", kv.sync, kv, {})
    local before = llm.stats().prefix_tokens
    kv = fed {1, 2, 3, 4}
    assert.same({5}, kv:sync {1, 2, 3, 5})
    assert.equal(before + 3, llm.stats().prefix_tokens)
  end)

  it("is saved and restored without a difference", function()
    local kv = fed(ids_of(4, 45, model.vocab_size))
    local path = h.scratch "cache.kv"
    assert.is_true(kv:save(path))
    local again = assert(model:restore(path))
    assert.same(kv:tokens(), again:tokens())
    assert.same(next_row(kv), next_row(again))
    local none, message = model:restore(h.scratch "no.kv")
    assert.is_nil(none)
    assert.equal("string", type(message))
    none, message = kv:save "/no/such/folder/x.kv"
    assert.is_nil(none)
    assert.equal("string", type(message))
    fails("misuse", "path must be a string, got nil", kv.save, kv)
    local other <close> = h.tiny "gpt2-f32"
    none, message = other:restore(path)
    assert.is_nil(none)
    assert(message:find "model", message)
  end)

  it("is full at its context, and every handle stays valid", function()
    local small <close> = h.tiny("llama-f32", {ctx = 40})
    local kv = small:cache()
    small:forward(kv, ids_of(1, 38, small.vocab_size))
    fails("cache_full", "cache full: 38 of 40 positions used, 3 requested", small.forward, small,
      kv, {1, 2, 3})
    assert.equal(38, #kv)
    small:forward(kv, {1, 2})
    assert.equal(40, #kv)
  end)

  it("that is garbage does not keep pages from others", function()
    local small <close> = h.tiny("llama-f32", {pages = 3})
    for _ = 1, 30 do small:forward(small:cache(), ids_of(1, 40, small.vocab_size)) end
    local a = small:cache()
    small:forward(a, ids_of(1, 60, small.vocab_size))
    local b = small:cache()
    fails("cache_full", "cache full", small.forward, small, b, ids_of(2, 60, small.vocab_size))
    assert.same({60, 0}, {#a, #b})
    a:close()
    small:forward(b, ids_of(2, 60, small.vocab_size))
  end)

  it("returns its pages", function()
    collectgarbage()
    collectgarbage()
    local kv = fed(ids_of(1, 50, model.vocab_size))
    local before = llm.stats().pages_used
    for i = 1, 1000 do
      local fork <close> = kv:fork(i % 51)
      if i % 100 == 0 then model:forward(fork, 1) end
    end
    assert.equal(before, llm.stats().pages_used)
  end)

  it("refuses everything once it is closed", function()
    local kv = fed {1}
    kv:close()
    kv:close()
    assert.equal("llm.Cache (closed)", tostring(kv))
    for name, method in pairs(debug.getmetatable(kv).__methods) do
      if name ~= "close" and type(method) == "function" then fails("misuse", "cache is closed",
        method, kv, 1) end
    end
    fails("misuse", "cache is closed", function() return #kv end)
  end)
end)

describe("llm.reorder", function()
  local model
  setup(function() model = h.tiny "llama-f32" end)
  teardown(function() model:close() end)

  local function three()
    local kvs = {}
    for i = 1, 3 do
      kvs[i] = model:cache()
      model:forward(kvs[i], ids_of(i, 30 + i, model.vocab_size))
    end
    return kvs
  end

  it("moves, forks and closes", function()
    local kvs = three()
    local expected = {}
    for i, kv in ipairs(kvs) do expected[i] = kv:tokens() end
    local out = llm.reorder(kvs, {3, 1, 3, 3})
    assert.equal(4, #out)
    for i, row in ipairs {3, 1, 3, 3} do assert.same(expected[row], out[i]:tokens()) end
    assert.equal(kvs[3], out[1])
    assert.equal(kvs[1], out[2])
    assert.not_equal(out[3], out[4])
    assert.equal("llm.Cache (closed)", tostring(kvs[2]))
    local logits = model:forward(out, {1, 2, 3, 1})
    assert.same(logits:row(1):tolist(), logits:row(4):tolist())
    assert.not_same(logits:row(1):tolist(), logits:row(3):tolist())
    local fresh = model:cache()
    model:forward(fresh, expected[3])
    assert.same(model:forward(fresh, 3):tolist(), logits:row(3):tolist())
    assert.equal(#expected[3] + 1, #out[4])
  end)

  it("takes rows as topk_joint gives them, and none at all", function()
    local kvs = three()
    local tokens = kvs[2]:tokens()
    local out = llm.reorder(kvs, llm.tensor {2, 2})
    assert.same({tokens, tokens}, {out[1]:tokens(), out[2]:tokens()})
    assert.same({}, llm.reorder(out, {}))
    assert.equal("llm.Cache (closed)", tostring(out[1]))
  end)

  it("refuses rows and caches that are not there, and changes nothing", function()
    local kvs = three()
    fails("misuse", "rows%[2%] must be 1 to 3, got 4", llm.reorder, kvs, {1, 4})
    fails("misuse", "rows%[1%] must be 1 to 3, got 0", llm.reorder, kvs, {0})
    fails("misuse", "caches%[1%] and caches%[2%] are the same cache", llm.reorder, {kvs[1],
      kvs[1]}, {1})
    fails("misuse", "caches must be a list of caches, got 1", llm.reorder, 1, {1})
    for i, kv in ipairs(kvs) do assert.equal(30 + i, #kv) end
  end)
end)
