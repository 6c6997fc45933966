-- The bundled strategies on the built-in model, run as jobs.
local h = require "spec.helper"
local strategies = require "spec.strategies"

local model

local function result_of(name, arguments, prompt)
  return strategies.result_of(model, name, arguments, prompt)
end

-- Beam search by running each beam anew at every step: the algorithm in plain code.
local function beam_by_hand(prompt, B, M, alpha, early)
  local live, done = {{sum = 0, ids = {}}}, {}
  local eog = {}
  for _, id in ipairs(model.eog) do eog[id] = true end
  for n = 1, M do
    local candidates = {}
    for _, beam in ipairs(live) do
      local kv <close> = model:cache()
      local ids = table.move(beam.ids, 1, #beam.ids, #prompt + 1, {table.unpack(prompt)})
      local scores, top = model:forward(kv, ids):log_softmax():topk(3 * B)
      scores, top = scores:tolist(), top:tolist()
      for i, id in ipairs(top) do
        candidates[#candidates + 1] = {sum = beam.sum + scores[i], id = id,
          ids = table.move({id}, 1, 1, #beam.ids + 1, {table.unpack(beam.ids)})}
      end
    end
    table.sort(candidates, function(a, b) return a.sum > b.sum end)
    live = {}
    for i = 1, math.min(#candidates, math.max(2, 1 + #model.eog) * B) do
      local c = candidates[i]
      if eog[c.id] or n == M then
        if i <= B then done[#done + 1] = {score = c.sum / n ^ alpha, ids = c.ids} end
      elseif #live < B then
        live[#live + 1] = c
      end
    end
    table.sort(done, function(a, b) return a.score > b.score end)
    for i = #done, B + 1, -1 do done[i] = nil end
    if n == M then break end
    if #done == B then
      local length = early == "never" and alpha > 0 and M or n
      if early == "true" or live[1].sum / length ^ alpha <= done[B].score then break end
    end
  end
  return done
end

-- The model goes on for more than 24 tokens, and "the" is in them.
local LONG = "And God said unto"

describe("a strategy", function()
  setup(function() model = h.builtin {threads = 2} end)
  teardown(function() model:close() end)

  it("greedy = beam 1 = top-k 1 = temperature 0", function()
    local greedy = result_of("greedy", "-n 24", LONG)
    assert.equal(24, #greedy.ids)
    assert.same(greedy.ids, result_of("beam", "--beam 1 -n 24", LONG).ids)
    for _, arguments in ipairs {"--top-k 1", "--temperature 0", "--top-p 0", "--min-p 1",
      "--sampler temperature=0,top_p=0.9", "--sampler min_p=0.01,temperature=0 --seed 5"} do
      assert.same(greedy.ids, result_of("sample", arguments .. " -n 24", LONG).ids, arguments)
    end
  end)

  it("greedy is the argmax of each step", function()
    local prompt = model:encode "And the LORD said unto"
    assert.same(h.greedy(model, prompt, 16), result_of("greedy", "-n 16").ids)
  end)

  it("sample gives the same text for the same seed, another for another", function()
    local a = result_of("sample", "-n 24 --seed 1")
    assert.same(a.ids, result_of("sample", "-n 24 --seed 1").ids)
    assert.not_same(a.ids, result_of("sample", "-n 24 --seed 2").ids)
    assert.same(a.ids, result_of("sample", "-n 24 --seed 1 --temperature 1").ids)
  end)

  it("sample draws from the head of the same text whatever the length", function()
    local long = result_of("sample", "-n 20 --seed 9")
    local short = result_of("sample", "-n 7 --seed 9")
    assert.same(table.move(long.ids, 1, 7, 1, {}), short.ids)
  end)

  it("beam does what the plain algorithm does", function()
    local prompt = model:encode "And the LORD said unto"
    for _, case in ipairs {{3, 12, 1.0, "false"}, {3, 12, 0.0, "never"}, {2, 20, -0.5, "false"},
      {4, 16, 2.0, "never"}, {4, 16, 1.0, "true"}} do
      local B, M, alpha, early = table.unpack(case)
      local wanted = beam_by_hand(prompt, B, M, alpha, early)
      local result = result_of("beam", ("--beam %d -n %d --length-penalty %s --early-stopping %s")
        :format(B, M, alpha, early))
      assert.equal(#wanted, #result.outputs)
      for i, output in ipairs(result.outputs) do
        assert.same(wanted[i].ids, output.ids)
        assert(math.abs(wanted[i].score - output.score) < 1e-4)
      end
    end
  end)

  it("beam's scores are the sums of log-probabilities over length ^ penalty", function()
    local result = result_of("beam", "--beam 4 -n 12 --length-penalty 0.7 --logprobs 0")
    assert.equal(4, #result.outputs)
    strategies.check_scores(result, 0.7)
  end)

  it("beam tells what it has while it runs", function()
    local pool = require "llm.pool"
    local opt = {beam = 2, length_penalty = 1.0, early_stopping = false, max_tokens = 9,
      max_rows = 8}
    local p, seq = pool(opt), llm.seq {1, 2}
    assert.same({}, opt.partial())
    seq:push(300)
    assert.is_false(p:is_over(-3.0, 1, seq))
    assert.same({{ids = {300}, score = -3.0}}, opt.partial())
    p:add(seq:fork(0), -4.0, 2)
    assert.same({{ids = {300, 0}, score = -2.0}}, opt.partial())
  end)

  it("beam is wider than the vocabulary allows, and narrower than the candidates", function()
    local wide = result_of("beam", "--beam 200 -n 2")
    assert.equal(200, #wide.outputs)
    local tiny <close> = h.tiny("llama-f32", {pages = 20000})
    local before = model
    model = tiny
    local ok, result = pcall(result_of, "beam", ("--beam %d -n 3"):format(tiny.vocab_size + 3), "a")
    model = before
    assert(ok, result)
    assert(#result.outputs > tiny.vocab_size)
  end)

  it("beam goes on when tokens end and when every one does", function()
    local all = {}
    for id = 0, model.vocab_size - 1 do all[#all + 1] = id end
    local ending <close> = h.builtin {eog = all}
    local before = model
    model = ending
    local ok, result = pcall(result_of, "beam", "--beam 3 -n 9 --max-rows 8")
    model = before
    assert(ok, result)
    assert.equal(3, #result.outputs)
    for _, output in ipairs(result.outputs) do
      assert.equal(1, #output.ids)
      assert.equal("eos", output.finish)
      assert.equal("", output.text)
    end
  end)

  it("beam applies the chain to log-probabilities", function()
    local plain = result_of("beam", "--beam 2 -n 16")
    assert.not_same(plain.ids, result_of("beam", "--beam 2 -n 16 --repetition-penalty 1.5").ids)
    local banned = result_of("beam", "--beam 2 -n 16 --min-tokens 12")
    for _, output in ipairs(banned.outputs) do assert(#output.ids >= 12) end
  end)

  it("beam has at most 30 lines of code, none over 100 columns", function()
    local n = 0
    for line in io.lines "scripts/beam.lua" do
      assert(#line <= 100, line)
      if not line:find "^%s*$" and not line:find "^%s*%-%-" then n = n + 1 end
    end
    assert(n <= 30, n)
  end)

  it("ends at stop strings in what it returns as in what it emits", function()
    for _, name in ipairs {"greedy", "beam"} do
      local arguments = (name == "beam" and "--beam 1 " or "") .. "-n 20"
      local whole = result_of(name, arguments, LONG)
      local at = assert(whole.text:find("the", 1, true), whole.text)
      local cut = result_of(name, arguments .. " --stop the", LONG)
      assert.equal(whole.text:sub(1, at - 1), cut.text)
      assert.equal("stop", cut.finish)
      assert.same(table.move(whole.ids, 1, #cut.ids, 1, {}), cut.ids)
    end
  end)
end)
