-- The tiny models: every architecture and every format against logits of an independent program.
local h = require "spec.helper"

local function check(name, model, tolerance)
  local first = true
  for case in h.lines("models/" .. name .. ".ref.jsonl") do
    local kv <close> = model:cache()
    local rows = model:forward(kv, case.ids, {rows = "all"}):lists()
    local worst, most = 0, 0
    for i, row in ipairs(case.rows) do
      worst = math.max(worst, h.difference(rows[row], case.logits[i]))
      most = math.max(most, h.largest(case.logits[i]))
    end
    local figures = ("largest difference %g of logits up to %g"):format(worst, most)
    assert(worst <= tolerance * most, figures)
    if first and case.greedy_margin > 2 * worst then
      assert.same(case.greedy, h.greedy(model, case.ids, #case.greedy))
    end
    first = false
  end
end

-- name, and what the issue's device f32 tolerance is relative to
local files = {
  "llama-f32", "llama-f16", "llama-bf16", "llama-q8_0", "llama-q4_0", "llama-q4_1", "llama-q5_0",
  "llama-q5_1", "llama-iq4_nl", "qwen2-f32", "qwen3-f32", "qwen3-f16", "qwen3-bf16", "qwen3-q8_0",
  "qwen3-q4_0", "gemma3-f32", "llama-yarn", "llama-llama3",
  "gpt2-f32", "llama256-q2_k", "llama256-q3_k", "llama256-q4_k", "llama256-q4_k_m", "llama256-q5_k",
  "llama256-q6_k", "qwen3_256-q4_k_m", "qwen3_256-q6_k",
}

describe("on the reference device", function()
  for _, name in ipairs(files) do
    it(name .. " gives the golden logits and greedy ids", function()
      local model <close> = h.tiny(name)
      check(name, model, 1e-4)
    end)
  end
end)

describe("the built-in model", function()
  it("gives the logits and greedy ids of an independent program", function()
    local model <close> = h.builtin {device = "ref"}
    check("builtin", model, 1e-4)
  end)
end)

describe("on the cpu device", function()
  local float = {"llama-f32", "llama-f16", "llama-bf16", "qwen2-f32", "qwen3-f32", "qwen3-bf16",
    "gemma3-f32", "gpt2-f32"}
  -- Where the processor multiplies pairs of bf16, activations are rounded for BF16 weights.
  local function tolerance(name, model, otherwise)
    local rounds = name:find "bf16" and model:describe():find "device cpu: avx512"
    return rounds and 0.015 or otherwise
  end
  for _, name in ipairs(float) do
    it(name .. " with an f32 cache gives the golden logits and greedy ids", function()
      local model <close> = h.tiny(name, {device = "cpu", kv = "f32"})
      check(name, model, tolerance(name, model, 1e-4))
    end)
    it(name .. " with an f16 cache stays within half precision", function()
      local model <close> = h.tiny(name, {device = "cpu"})
      check(name, model, tolerance(name, model, 5e-3))
    end)
  end

  -- Activations in 8 bits: the tiny models' random weights exaggerate what that costs; llama.cpp's
  -- own largest differences here are up to 0.44 of logits up to 13.
  for _, name in ipairs(files) do
    if name:find "q[0-9_]+" or name:find "iq4" then
      it(name .. " with 8-bit activations stays near the golden logits", function()
        local model <close> = h.tiny(name, {device = "cpu"})
        check(name, model, 0.06)
      end)
    end
  end
end)

describe("tokenizers of the tiny models", function()
  local of = {llama = "llama-f16", gemma3 = "gemma3-f32", gpt2 = "gpt2-f32", qwen2 = "qwen2-f32",
    qwen3 = "qwen3-f16", llama256 = "llama256-q4_k", qwen3_256 = "qwen3_256-q6_k"}
  for name, file in pairs(of) do
    it(name .. " encodes as the reference", function()
      local model <close> = h.tiny(file)
      for case in h.lines("models/" .. name .. "-tokens.jsonl") do
        assert.same(case.ids, model:encode(case.text, {add_special = false, parse_special = true}))
        assert.same(case.ids_special, model:encode(case.text, {parse_special = true}))
      end
    end)
  end
end)
