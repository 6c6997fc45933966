local h = require "spec.helper"
local llm = require "llm"

local function fails(kind, pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.equal(kind, err.kind, tostring(err))
  assert(err.message:find(pattern), err.message)
end

local function equal(a, b)
  assert.same({a.n_rows, a.n_columns}, {b.n_rows, b.n_columns})
  assert.equal(0, h.difference(a:narrow(1, 1, a.n_rows):lists()[1], b:lists()[1]))
  assert.same(a:lists(), b:lists())
end

describe("llm.load", function()
  it("gives nil and a message on failure", function()
    local model, message = llm.load("spec/data/models/nothing.gguf")
    assert.is_nil(model)
    assert(message:find("nothing.gguf", 1, true), message)
    assert.equal("string", type(message))
    assert.is_nil((llm.load("spec")))
    assert.is_nil((llm.load("spec/data/models/llama-f32.gguf", {kv = "f8"})))
    assert.is_nil((llm.load("spec/data/models/llama-f32.gguf", {device = "abacus"})))
  end)

  it("uses no more threads than there are cores", function()
    local path = "spec/data/models/llama-f32.gguf"
    local all <close> = assert(llm.load(path, {}))
    local more <close> = assert(llm.load(path, {threads = 1000}))
    assert.equal(all.device_info, more.device_info)
  end)

  it("raises for options of the wrong kind", function()
    local path = "spec/data/models/llama-f32.gguf"
    fails("misuse", "threads must be an integer, got 1.5", llm.load, path, {threads = 1.5})
    fails("misuse", "ctx must be 1 to 2147483647, got 0", llm.load, path, {ctx = 0})
    fails("misuse", "device must be a string, got 5", llm.load, path, {device = 5})
    fails("misuse", "path must be a string, got 5", llm.load, 5)
    fails("misuse", "path holds a zero byte", llm.load, "a\0b")
    fails("misuse", "eog%[1%] must be an integer", llm.load, path, {eog = {"x"}})
  end)
end)

describe("a Model", function()
  local model
  setup(function() model = h.tiny "llama-f32" end)
  teardown(function() model:close() end)

  it("knows its file", function()
    assert.equal("llama", model.arch)
    for _, name in ipairs {"vocab_size", "n_layers", "width", "n_params", "ctx", "ctx_train",
      "max_rows", "n_pages",
      "page_bytes", "position_bytes", "weight_bytes", "weight_bytes_step"} do
      assert.equal("integer", math.type(model[name]), name)
      assert(model[name] > 0, name)
    end
    local kv = (h.device or "ref"):find "^cuda" and "f16" or "f32"
    assert.same({kv, h.device or "ref", 32}, {model.kv, model.device, #model.hash})
    assert(model.load_s >= 0)
    assert(model.path:find("llama-f32.gguf", 1, true))
    assert(model:describe():find "llama")
    assert.equal(model.width, model.metadata["llama.embedding_length"])
    assert(tostring(model):find "^llm.Model ")
    assert.is_nil(model.nothing)
    fails("misuse", "llm.Model cannot be assigned to", function() model.ctx = 5 end)
  end)

  it("shows the metadata as a table", function()
    local n, seen = 0, {}
    for key, value in pairs(model.metadata) do
      n = n + 1
      seen[key] = value
      assert(value ~= nil)
    end
    assert(n > 10)
    assert.equal("llama", seen["general.architecture"])
    assert.equal(model.vocab_size, #model.metadata["tokenizer.ggml.tokens"])
    assert.equal("string", type(model.metadata["tokenizer.ggml.tokens"][1]))
    assert.is_nil(model.metadata["no.such.key"])
    assert.is_nil(model.metadata["general.architecture\0x"])
    assert.is_nil(model.metadata[1])
  end)

  it("has a list of end-of-generation ids that is each reader's own", function()
    local eog = model.eog
    eog[#eog + 1] = 0
    assert.is_not.same(eog, model.eog)
    local other <close> = h.tiny("llama-f32", {eog = {3, 5}})
    assert.same({3, 5}, other.eog)
    assert.is_true(other:is_eog(5))
    assert.is_false(other:is_eog(4))
    assert.is_true(other:is_eog(llm.tensor {{3}}))
    local none <close> = h.tiny("llama-f32", {eog = {}})
    assert.same({}, none.eog)
  end)

  it("encodes and decodes bytes", function()
    local text = "In the beginning \0 \xff ü"
    local ids = model:encode(text, {add_special = false})
    assert.equal(text, model:decode(ids))
    assert.equal(text, model:decode(llm.tensor(ids)))
    local bytes = {}
    for i, id in ipairs(ids) do bytes[i] = model:token(id) end
    assert.equal(text, table.concat(bytes))
    assert.same({}, model:encode("", {add_special = false}))
    assert.equal("", model:decode({}))
    fails("misuse", "unknown option special; known: add_special, parse_special", model.encode,
      model, "x", {special = 1})
    fails("misuse", "add_special must be true or false, got 1", model.encode, model, "x", {
      add_special = 1})
    fails("misuse", "text must be a string, got 5", model.encode, model, 5)
    fails("misuse", "vocabulary", model.token, model, model.vocab_size)
    fails("misuse", "vocabulary", model.decode, model, {-1})
    fails("misuse", "ids%[2%] must be an integer, got 1.5", model.decode, model, {1, 1.5})
  end)

  it("feeds ids given as a list, one id, or a tensor", function()
    local a, b, c = model:cache(), model:cache(), model:cache()
    model:forward(a, {1, 2, 3})
    local logits = model:forward(a, 4)
    assert.same({1, model.vocab_size, true}, {logits.n_rows, logits.n_columns, logits.is_logits})
    equal(logits, model:forward(b, {1, 2, 3, 4}))
    equal(logits, model:forward(c, llm.tensor {1, 2, 3, 4}))
    assert.same({1, 2, 3, 4}, a:tokens())
    equal(model:forward(a, logits:argmax()), model:forward(b, logits:argmax():item()))
  end)

  it("gives as many rows as asked", function()
    local all = model:forward(model:cache(), {1, 2, 3, 4}, {rows = "all"})
    assert.equal(4, all.n_rows)
    local two = model:forward(model:cache(), {1, 2, 3, 4}, {rows = 2})
    assert.same({all:row(3):tolist(), all:row(4):tolist()}, two:lists())
    local kv = model:cache()
    assert.is_nil((model:forward(kv, {1, 2, 3}, {rows = 0})))
    equal(all:row(4), model:forward(kv, 4))
  end)

  it("serves many caches in one pass, each as if alone", function()
    local kvs, alone = {}, {}
    local feeds = {{1, 2, 3}, 4, {5, 6}}
    for i, ids in ipairs(feeds) do
      kvs[i] = model:cache()
      alone[i] = model:forward(model:cache(), ids):tolist()
    end
    assert.same(alone, model:forward(kvs, feeds):lists())
    assert.same({3, 1, 2}, {#kvs[1], #kvs[2], #kvs[3]})
    local twin = {kvs[1]:fork(), kvs[2]:fork(), kvs[3]:fork()}
    local expected = model:forward(kvs, {7, 8, 9})
    equal(expected, model:forward(twin, llm.tensor {7, 8, 9}))
    equal(model:forward(kvs[2]:fork(), {7, 8}, {rows = "all"}),
      model:forward({kvs[1]:fork(), kvs[2]:fork()}, {{1}, {7, 8}}, {rows = "all"}):narrow(1, 2, 2))
    local mixed = model:forward({kvs[1], kvs[2]}, {llm.tensor {{3}}, {4}})
    assert.equal(2, mixed.n_rows)
  end)

  it("gives hidden states after layers, and logits of them", function()
    local n = model.n_layers
    local logits, hidden = model:forward(model:cache(), {1, 2, 3}, {hidden = {0, 1, n}})
    for _, layer in ipairs {0, 1, n} do
      assert.same({3, model.width, "f32"}, {hidden[layer].n_rows, hidden[layer].n_columns,
        hidden[layer].dtype})
    end
    local again = model:logits(hidden[n])
    assert.is_true(again.is_logits)
    assert.same(logits:tolist(), again:row(3):tolist())
    local none, states = model:forward(model:cache(), {1, 2, 3}, {hidden = {1}, rows = 0})
    assert.is_nil(none)
    equal(hidden[1], states[1])
    fails("misuse", tostring(n + 1), model.forward, model, model:cache(), {1}, {hidden = {n + 1}})
    fails("misuse", "", model.logits, model, llm.tensor {{1.5, 2}})
  end)

  it("scores ids", function()
    local ids = {5, 9, 3, 7}
    local kv = model:cache()
    local rows = model:forward(model:cache(), {1, 5, 9, 3, 7}, {rows = "all"}):log_softmax():lists()
    model:forward(kv, 1)
    local score = model:score(kv, ids)
    assert.same({4, 1}, {score.n_rows, score.n_columns})
    for i, id in ipairs(ids) do assert(math.abs(score[i] - rows[i][id + 1]) < 1e-4) end
    assert.same({1, 5, 9, 3, 7}, kv:tokens())
    fails("misuse", "", model.score, model, model:cache(), ids)
    fails("misuse", "", model.score, model, kv, {})
  end)

  it("refuses what cannot be fed, and changes nothing", function()
    local kv, other = model:cache(), model:cache()
    model:forward(kv, {1, 2})
    local stranger <close> = h.tiny "llama-f32"
    fails("misuse", "caches%[1%] and caches%[3%] are the same cache", model.forward, model, {kv,
      other, kv}, {1, 2, 3})
    fails("misuse", "another model", model.forward, model, stranger:cache(), 1)
    fails("misuse", "2 caches, but ids for 3", model.forward, model, {kv, other}, {1, 2, 3})
    fails("misuse", "no ids to feed for cache 1", model.forward, model, kv, {})
    fails("misuse", "no ids to feed for cache 2", model.forward, model, {kv, other}, {1, {}})
    fails("misuse", "caches is an empty list", model.forward, model, {}, {})
    fails("misuse", "cache must be an llm.Cache, got nil", model.forward, model)
    fails("misuse", "caches%[2%] must be an llm.Cache, got 5", model.forward, model, {kv, 5}, {1,
      2})
    fails("misuse", "got nil", model.forward, model, kv)
    fails("misuse", "got a string", model.forward, model, kv, "1")
    fails("misuse", "ids%[1%] must be an integer, got 1.5", model.forward, model, kv, {1.5})
    fails("misuse", "i32", model.forward, model, kv, llm.tensor {1.5})
    fails("misuse", "vocabulary", model.forward, model, kv, model.vocab_size)
    fails("misuse", "vocabulary", model.forward, model, kv, {1, -1})
    fails("misuse", "unknown option row; known: rows, hidden, exit, parents", model.forward, model,
      kv, 1, {row = 1})
    fails("misuse", "rows must be an integer or \"all\"", model.forward, model, kv, 1, {
      rows = "some"})
    fails("misuse", "rows must be at least 0, got %-1", model.forward, model, kv, 1, {rows = -1})
    fails("misuse", "parents has 2 entries for 1 ids", model.forward, model, kv, 1, {parents = {0,
      1}})
    fails("misuse", "outside", model.forward, model, kv, 1, {exit = model.n_layers + 1})
    other:close()
    fails("misuse", "cache is closed", model.forward, model, other, 1)
    fails("misuse", "caches%[2%]: cache is closed", model.forward, model, {kv, other}, {1, 2})
    assert.same({1, 2}, kv:tokens())
  end)

  it("takes no id from a row it cannot choose from", function()
    local kv = model:cache()
    local bad = llm.logits({{-math.huge, -math.huge}}):argmax()
    fails("no_finite", "row 1", model.forward, model, kv, bad)
    assert.equal(0, #kv)
  end)

  it("says how many rows were asked beyond its limit", function()
    local small <close> = h.tiny("llama-f32", {max_rows = 2})
    assert.equal(2, small.max_rows)
    local kvs = {small:cache(), small:cache(), small:cache()}
    fails("misuse", "3 .*2", small.forward, small, kvs, {1, 2, 3})
    for _, kv in ipairs(kvs) do assert.equal(0, #kv) end
  end)

  it("refuses everything once it is closed, while its caches live on", function()
    local other = h.tiny "llama-f32"
    local kv = other:cache()
    other:forward(kv, {1, 2})
    other:close()
    other:close()
    assert.equal("llm.Model (closed)", tostring(other))
    fails("misuse", "model is closed", function() return other.ctx end)
    fails("misuse", "model is closed", other.forward, other, kv, 1)
    fails("misuse", "model is closed", other.encode, other, "x")
    fails("misuse", "model is closed", other.cache, other)
    assert.equal(2, #kv:fork())
    assert.equal(other, kv.model)
    local metadata = model.metadata
    assert.equal("llama", metadata["general.architecture"])
  end)
end)
