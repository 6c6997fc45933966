-- Samplers against the reference rows: kept ids exactly, changed logits to 1e-5.
local llm = require "llm"
local h = require "spec.helper"

local FOLDER = "reference/samplers/"
-- What the reference calls by these names is a file of samplers/.
local NAMES = {"temperature", "top_k", "top_p", "min_p", "repetition", "presence_frequency"}

local rows = {}
for case in h.lines(FOLDER .. "rows.jsonl") do rows[case.row] = case.logits end

local function sampler(name, params)
  return require("samplers." .. name)(params, nil)
end

local function sequence(prompt, history)
  local seq = llm.seq(prompt)
  for _, id in ipairs(history) do seq:push(id) end
  return seq
end

local function near(expected, got)
  assert.equal(#expected, #got)
  for i, x in ipairs(expected) do
    local ok = x == got[i] or math.abs(x - got[i]) <= 1e-5 * math.max(1, math.abs(x))
    assert(ok, ("entry %d: %.9g, expected %.9g"):format(i, got[i], x))
  end
end

local function kept(values)
  local ids = {}
  for i, x in ipairs(values) do if x > -math.huge then ids[#ids + 1] = i - 1 end end
  return ids
end

local function flat(tensor)
  return tensor:lists()[1]
end

local function check_answer(case, out)
  local values = flat(out)
  if case.kept then assert.same(case.kept, kept(values)) end
  if case.logits_out then near(case.logits_out, values) end
  if case.argmax then assert.equal(case.argmax, out:argmax():item()) end
  if case.softmax then near(case.softmax, flat(out:softmax())) end
end

for _, name in ipairs(NAMES) do
  describe("samplers/" .. name .. ".lua", function()
    it("answers as the reference", function()
      local n = 0
      for case in h.lines(FOLDER .. name .. ".jsonl") do
        local params = case.params
        if params.repetition == 1 then params.repetition = nil end
        if not params.repetition then
          local out = sampler(name, params)(llm.logits {rows[case.row]},
            {sequence({}, case.history or {})})
          if case.kept then assert.same(case.kept, kept(flat(out))) end
          if case.logits then near(case.logits, flat(out)) end
          n = n + 1
        end
      end
      assert(n >= 10)
    end)

    it("answers at the edges as the reference", function()
      for case in h.lines(FOLDER .. "edge.jsonl") do
        if case.filter == name and not case.tolerance_note then
          local logits = case.logits or case.probs
          if case.probs then
            for i, p in ipairs(logits) do logits[i] = math.log(p) end
          end
          local function answer()
            local seq = sequence(case.prompt or {}, case.history or {})
            local out = sampler(name, case.params)(llm.logits {logits}, {seq})
            return out, out:argmax():tolist()
          end
          if case.error then
            local ok, err = pcall(answer)
            assert.is_false(ok, case.why)
            local kind = case.error ~= case.error and "nan" or case.error
            assert.equal(kind == "no finite entry" and "no_finite" or kind, err.kind)
          else
            check_answer(case, (answer()))
          end
        end
      end
    end)
  end)
end

describe("the bundled chain", function()
  it("answers as the reference", function()
    local chain = require "llm.chain"
    for case in h.lines(FOLDER .. "chain.jsonl") do
      local filter = assert(chain.build(assert(chain.collect(case.params)), nil))
      local out = filter(llm.logits {rows[case.row]}, {llm.seq {0}})
      assert.same(case.kept, kept(flat(out)))
      local probs, among = flat(out:softmax()), {}
      for i, id in ipairs(case.kept) do among[i] = probs[id + 1] end
      for i, p in ipairs(case.probs) do assert(math.abs(p - among[i]) <= 2e-6) end
    end
  end)
end)

describe("penalties", function()
  local logits = {{1, -1, 2, -2, 3}, {1, -1, 2, -2, 3}, {1, -1, 2, -2, 3}}

  it("treat each row by its own sequence, however long", function()
    local seqs = {sequence({0}, {0, 0}), sequence({1, 2, 3}, {4}), sequence({}, {})}
    local out = sampler("repetition", {penalty = 2})(llm.logits(logits), seqs):lists()
    near({0.5, -1, 2, -2, 3}, out[1])
    near({1, -2, 1, -4, 1.5}, out[2])
    near({1, -1, 2, -2, 3}, out[3])
    local stage = sampler("presence_frequency", {presence = 0.5, frequency = 0.25})
    out = stage(llm.logits(logits), seqs):lists()
    near({0, -1, 2, -2, 3}, out[1])
    near({1, -1, 2, -2, 2.25}, out[2])
    near({1, -1, 2, -2, 3}, out[3])
  end)

  it("do not change the logits they are given", function()
    local x = llm.logits {logits[1]}
    sampler("repetition", {penalty = 2})(x, {sequence({0}, {1})})
    sampler("presence_frequency", {presence = 1})(x, {sequence({0}, {1})})
    sampler("temperature", {temperature = 0.5})(x, {})
    assert.same(logits[1], flat(x))
  end)
end)

describe("samplers/min_new_tokens.lua", function()
  it("masks the end tokens of the rows that are too short", function()
    local stage = require "samplers.min_new_tokens"({n = 2}, {eog = {1, 3}})
    local x = llm.logits {{1, 2, 3, 4}, {1, 2, 3, 4}}
    local out = stage(x, {sequence({0, 0, 0}, {5}), sequence({0}, {5, 6})}):lists()
    assert.same({1, -math.huge, 3, -math.huge}, out[1])
    assert.same({1, 2, 3, 4}, out[2])
  end)

  it("does nothing where no token ends", function()
    local stage = require "samplers.min_new_tokens"({n = 2}, {eog = {}})
    assert.same({1, 2}, stage(llm.logits {{1, 2}}, {sequence({0}, {})}):tolist())
  end)
end)

describe("every sampler file", function()
  it("has at most 10 lines of code in its body and names its source", function()
    for _, name in ipairs {"temperature", "top_k", "top_p", "min_p", "repetition",
      "presence_frequency", "min_new_tokens"} do
      local code, source = 0, h.read("samplers/" .. name .. ".lua")
      for line in source:match("return function.*"):gmatch "[^\n]+" do
        if not line:find "^%s*%-%-" then code = code + 1 end
      end
      assert(code - 2 <= 10, name .. " has " .. code)
      assert(source:find "%d%d%d%d" or source:find "API" or source:find "transformers", name)
    end
  end)
end)
