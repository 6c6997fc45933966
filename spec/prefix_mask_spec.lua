-- model:prefix_mask(bytes): what a text may begin with that must begin with these bytes.
local h = require "spec.helper"

local control = {[2] = true, [3] = true} -- unknown and control: not shown in texts

local function fits(token, bytes)
  local n = math.min(#token, #bytes)
  return #token > 0 and token:sub(1, n) == bytes:sub(1, n)
end

local function expected(model, bytes)
  local types, row = model.metadata["tokenizer.ggml.token_type"], {}
  for id = 0, model.vocab_size - 1 do
    local shown = not (types and control[types[id + 1]])
    local allowed = bytes == "" or shown and fits(model:token(id), bytes)
    row[id + 1] = allowed and 0 or -math.huge
  end
  return row
end

local texts = {"", " ", "t", " t", "the", " the", " there is", "\n", "<", "</s>", "<s>x", "<unk>",
  "\0", "\xE2", "\xE2\x96\x81", "\xC3\xA9t\xC3\xA9", "\xFF", "<0x41>", "A",
  "no token begins so long"}

local models = {
  ["built-in"] = function() return h.builtin() end,
  ["llama-f32"] = function() return h.tiny "llama-f32" end,
  ["gemma3-f32"] = function() return h.tiny "gemma3-f32" end,
  ["gpt2-f32"] = function() return h.tiny "gpt2-f32" end,
  ["qwen3-f32"] = function() return h.tiny("qwen3-f32", {device = "cpu"}) end,
}

for name, open in pairs(models) do
  describe("prefix_mask of " .. name, function()
    local model
    setup(function() model = open() end)
    teardown(function() model:close() end)

    it("is 0 for tokens that begin with the bytes or begin them, else −inf", function()
      for _, bytes in ipairs(texts) do
        local mask = model:prefix_mask(bytes)
        assert.equal("1 " .. model.vocab_size, ("%d %d"):format(mask.n_rows, mask.n_columns))
        assert.same(expected(model, bytes), mask:tolist(), ("%q"):format(bytes))
      end
    end)

    it("allows each token for its own bytes, and columns are ids", function()
      for id = 0, model.vocab_size - 1, 7 do
        local token = model:token(id)
        local shown = model:decode({id, id}, {render_special = false}) ~= ""
        if shown then assert.equal(0, model:prefix_mask(token)[id]) end
      end
    end)

    it("added to logits leaves a text that begins with the bytes", function()
      local kv <close> = model:cache()
      local logits = model:forward(kv, model:encode "In the beginning")
      local id = (logits + model:prefix_mask " w"):argmax():item()
      assert.is_true(fits(model:token(id), " w"))
    end)
  end)
end

describe("prefix_mask", function()
  it("refuses what is no string", function()
    local model <close> = h.tiny "llama-f32"
    for value, text in pairs {[5] = "5", [true] = "true"} do
      local ok, err = pcall(model.prefix_mask, model, value)
      assert.is_true(not ok and err.kind == "misuse")
      assert.equal("bytes must be a string, got " .. text, err.message)
    end
    assert.is_false((pcall(model.prefix_mask, model)))
  end)
end)
