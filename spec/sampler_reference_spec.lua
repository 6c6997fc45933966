-- Samplers against the reference: kept ids exactly, changed logits to 1e-5, mu to 1e-4. Every file
-- of the reference is read, and every case of it is met.
local llm = require "llm"
local chain = require "llm.chain"
local h = require "spec.helper"
local lists = require "spec.rows"

local sequence, near, kept, flat = lists.sequence, lists.near, lists.kept, lists.flat

local FOLDER = "reference/samplers/"

local rows = {}
for case in h.lines(FOLDER .. "rows.jsonl") do rows[case.row] = case.logits end

-- What the reference calls otherwise than its file in samplers/.
local FILES = {bias = "logit_bias"}

local function sampler(name, params, model)
  return require("samplers." .. (FILES[name] or name))(params, model)
end

local function close(expected, got, tolerance)
  local told = ("%.9g, expected %.9g"):format(got, expected)
  assert(math.abs(got - expected) <= tolerance, told)
end

-- What a row has lost, as the reference has it: [id, amount] by ascending id.
local function penalties_of(before, after)
  local out = {}
  for i, x in ipairs(after) do
    if x ~= before[i] then out[#out + 1] = {i - 1, before[i] - x} end
  end
  return out
end

local function check_penalties(case, before, after)
  local wanted, got = case.penalties, penalties_of(flat(llm.logits {before}), after)
  table.sort(wanted, function(a, b) return a[1] < b[1] end)
  assert.equal(#wanted, #got)
  for i, pair in ipairs(wanted) do
    assert.equal(pair[1], got[i][1])
    close(pair[2], got[i][2], 1e-5 * math.max(1, math.abs(pair[2])))
  end
end

local function check_answer(case, before, out)
  local values = flat(out)
  if case.kept then assert.same(case.kept, kept(values)) end
  if case.logits and case.row then near(case.logits, values) end
  if case.logits_out then near(case.logits_out, values) end
  if case.argmax then assert.equal(case.argmax, out:argmax():item()) end
  if case.softmax then near(case.softmax, flat(out:softmax())) end
  if case.penalties then check_penalties(case, before, values) end
end

-- ---- one file a filter ----

local CASES = {top_k = 50, top_p = 57, min_p = 50, typical_p = 50, epsilon = 40, eta = 40,
  top_n_sigma = 40, xtc = 50, temperature = 24, repetition = 24, presence_frequency = 30,
  no_repeat_ngram = 24, sequence_bias = 12, dry = 25}

for name, count in pairs(CASES) do
  describe("samplers/" .. name .. ".lua", function()
    it("answers as the reference", function()
      local n = 0
      for case in h.lines(FOLDER .. name .. ".jsonl") do
        local row = rows[case.row]
        local out = sampler(name, case.params)(llm.logits {row}, {sequence({}, case.history)})
        check_answer(case, row, out)
        n = n + 1
      end
      assert.equal(count, n)
    end)
  end)
end

-- ---- mirostat ----

for _, name in ipairs {"mirostat_v1", "mirostat_v2"} do
  describe("samplers/" .. name .. ".lua", function()
    it("moves mu and cuts as the reference, step by step", function()
      local n = 0
      for case in h.lines(FOLDER .. name .. ".jsonl") do
        local stage, seq = sampler(name, case.params), llm.seq {0}
        for i, step in ipairs(case.steps) do
          local out = stage(llm.logits {rows[step.row]}, {seq})
          close(step.mu, seq[name].value, 1e-4)
          assert.same(step.kept, kept(flat(out)))
          close(step.p, out:softmax():gather({step.token}):item(), 1e-5)
          seq:push(step.token)
          if not case.steps[i + 1] then
            stage(llm.logits {rows[step.row]}, {seq})
            close(step.mu_after, seq[name].value, 1e-4)
          end
        end
        n = n + 1
      end
      assert.equal(6, n)
    end)
  end)
end

-- ---- the chain ----

describe("the bundled chain", function()
  it("answers as the reference", function()
    local n = 0
    for case in h.lines(FOLDER .. "chain.jsonl") do
      local filter = assert(chain.build(assert(chain.collect(case.params)), nil))
      local out = filter(llm.logits {rows[case.row]}, {llm.seq {0}})
      assert.same(case.kept, kept(flat(out)))
      local probs = flat(out:softmax())
      for i, id in ipairs(case.kept) do close(case.probs[i], probs[id + 1], 2e-6) end
      n = n + 1
    end
    assert.equal(40, n)
  end)
end)

-- ---- edges ----

-- The chain of an edge case: in the fixed order, and a last temperature.
local function edge_chain(params)
  local last = params.then_temperature
  params.then_temperature = nil
  local stages = assert(chain.collect(params))
  stages[#stages + 1] = last and {name = "temperature", bare = last} or nil
  return assert(chain.build(stages, nil))
end

local REDUCTIONS = {softmax = "softmax", logsumexp = "logsumexp", entropy = "entropy"}

local function edge_answer(case, logits)
  local name, x = case.filter, llm.logits {logits}
  local seq = sequence(case.prompt or {}, case.history)
  if REDUCTIONS[name] then return x[name](x) end
  if name == "argmax" then return x, x:argmax():item() end
  if name == "sample" then return x, x:sample(llm.rng(1)):item() end
  if name == "chain" then return edge_chain(case.params)(x, {seq}) end
  if case.mu then case.params.mu = case.mu end
  local stage = sampler(name, case.params)
  local out = stage(x, {seq})
  if case.mu_after then
    seq:push(case.token)
    stage(llm.logits {logits}, {seq})
    close(case.mu_after, seq[name].value, 1e-4)
  end
  return out, out:argmax():item()
end

describe("at the edges", function()
  it("every sampler, reduction and choice answers as the reference", function()
    local n = 0
    for case in h.lines(FOLDER .. "edge.jsonl") do
      local logits = case.logits or case.probs
      if case.probs then
        for i, p in ipairs(logits) do logits[i] = math.log(p) end
      end
      local ok, out = pcall(edge_answer, case, logits)
      local told = case.filter .. ": " .. case.why
      if case.error then
        local kind = case.error ~= case.error and "nan" or case.error
        assert.is_false(ok, told)
        assert.equal(kind == "no finite entry" and "no_finite" or kind, out.kind, told)
      elseif not ok then
        error(told .. ": " .. tostring(out), 0)
      elseif case.value then
        close(case.value, out:item(), 1e-5 * math.max(1, case.value))
      elseif REDUCTIONS[case.filter] then
        near(case[case.filter], flat(out))
      else
        check_answer(case, logits, out)
      end
      n = n + 1
    end
    assert.equal(139, n)
  end)
end)

-- ---- on a real vocabulary ----

describe("samplers/dry.lua with the texts of smollm2", function()
  local path = h.real_path "smollm2"
  local with = h.with(path, it, pending)

  with("answers as the reference", function()
    local model <close> = assert(h.load(path, {threads = 1}))
    local zeros, n = {}, 0
    for i = 1, model.vocab_size do zeros[i] = 0 end
    for case in h.lines(FOLDER .. "dry_text.jsonl") do
      assert.same(case.history, model:encode(case.text))
      local seq = sequence({}, case.history)
      local out = sampler("dry", case.params, model)(llm.logits {zeros}, {seq})
      check_penalties(case, zeros, flat(out))
      n = n + 1
    end
    assert.equal(48, n)
  end)
end)
