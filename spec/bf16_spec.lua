-- F16 weights taken as BF16 (f16_as_bf16): what it changes and what not. Products of bf16 are in
-- spec/c/test_product.c, how they are packed in spec/c/test_store.c.
local h = require "spec.helper"
local llm = require "llm"

local ids = {8, 195, 107, 201, 307, 11, 99, 241, 53, 265}

local function load(name, options)
  local all = {device = "cpu", threads = 2, pages = 16, f16_as_bf16 = true}
  for key, value in pairs(options or {}) do all[key] = value end
  return h.tiny(name, all)
end

local function rows_of(model)
  local kv <close> = model:cache()
  return model:forward(kv, ids, {rows = "all"}):lists()
end

describe("f16_as_bf16", function()
  it("moves the logits of F16 weights, and not far", function()
    local model <close> = load "llama-f16"
    local plain <close> = load("llama-f16", {f16_as_bf16 = false})
    local worst, most = 0, 0
    local expected = rows_of(plain)
    for i, row in ipairs(rows_of(model)) do
      worst = math.max(worst, h.difference(row, expected[i]))
      most = math.max(most, h.largest(expected[i]))
    end
    assert(worst > 1e-4 * most and worst < 0.02 * most, ("%g of %g"):format(worst, most))
  end)

  it("gives a row the same bits alone and in a batch, on any number of threads", function()
    local model <close> = load "qwen3-f16"
    local one <close> = load("qwen3-f16", {threads = 1})
    local expected = rows_of(model)
    assert.same(expected, rows_of(one))
    local kvs = {model:cache(), model:cache(), model:cache()}
    for i, id in ipairs(ids) do
      local rows = model:forward(kvs, {id, id, id}):lists()
      for k = 1, 3 do assert.same(expected[i], rows[k]) end
    end
  end)

  it("changes no bit of a model without F16 matrices", function()
    for _, name in ipairs {"llama-q8_0", "llama-f32", "llama-bf16"} do
      local model <close> = load(name)
      local plain <close> = load(name, {f16_as_bf16 = false})
      assert.same(rows_of(plain), rows_of(model))
    end
  end)

  it("keeps its weights for the next start apart from those of F16", function()
    local folder = h.scratch "bf16-weights"
    os.execute(("rm -rf '%s'"):format(folder))
    local expected = {}
    for _, from in ipairs {"file", "image"} do
      for _, rounded in ipairs {true, false} do
        local model <close> = load("llama-f16", {f16_as_bf16 = rounded, weight_cache = folder})
        assert.equal(from, model:memory().weights_from)
        expected[rounded] = expected[rounded] or rows_of(model)
        assert.same(expected[rounded], rows_of(model))
      end
    end
  end)

  it("is refused by ref, and must be a boolean", function()
    local model, message = llm.load(h.data .. "models/llama-f16.gguf",
      {device = "ref", f16_as_bf16 = true})
    assert.is_nil(model)
    assert.equal("f16_as_bf16: not supported by device ref: "
      .. "it computes with F16 weights as they are", message)
    local ok, err = pcall(llm.load, nil, {f16_as_bf16 = 1})
    assert.is_false(ok)
    assert(err.message:find "f16_as_bf16 must be true or false", err.message)
  end)

  it("is --f16-as-bf16, and --verbose names the matrices that it changes", function()
    local command = "greedy -m %smodels/%s.gguf -p the -n 1 --device cpu --verbose --f16-as-bf16"
    local _, words, code = h.run(command:format(h.data, "llama-f16"))
    assert.equal(0, code)
    assert(words:find("ffn_up.weight %d+ × %d+ F16 as BF16\n"), words)
    _, words, code = h.run(command:format(h.data, "llama-q8_0"))
    assert.equal(0, code)
    assert.is_nil(words:find(" as BF16", 1, true))
  end)
end)
