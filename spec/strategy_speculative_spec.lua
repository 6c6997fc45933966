-- Exact speculation: the text of `sample`, token for token, in fewer passes.
local llm = require "llm"
local host = require "llm.run"
local speculation = require "llm.speculation"
local h = require "spec.helper"
local jobs = require "spec.jobs"

local SPECULATIVE = {"speculative", "prompt_lookup", "lookahead", "early_exit"}
local PROMPTS = {"And the LORD said unto", "the king of the king of the king of",
  "In the beginning God created the heaven and the earth. And the earth was"}

-- Arguments that make a chain; those with a memory or coins of their own too.
local CHAINS = {
  "", "--temperature 0", "--top-k 1", "--sampler temperature=0.8,top_k=40,top_p=0.95",
  "--temperature 0.5 --min-p 0.1", "--temperature 0.3 --repetition-penalty 1.3",
  "--temperature 0.3 --presence-penalty 1.5 --frequency-penalty 0.5",
  "--temperature 0.7 --min-tokens 18", "--sampler typical_p=0.8,temperature=0.6",
  "--sampler xtc(probability=0.5,threshold=0.05),temperature=0.5",
  "--sampler dry(multiplier=0.8,allowed_length=1),temperature=0.3",
  "--sampler mirostat_v1(tau=3,eta=0.3)", "--sampler mirostat_v2(tau=2,eta=0.5)",
  "--sampler no_repeat_ngram=3,temperature=0.3", "--sampler temperature=0.6,watermark",
}

if os.getenv "LLMLUA_SPEC_GC" then CHAINS = table.move(CHAINS, 10, 13, 1, {""}) end

-- case: {model, draft, prompt, chain, common: arguments of all, own: arguments by strategy}.
local function make(name, case, more)
  local arguments = ("%s %s %s"):format(case.chain or "", case.common or "", more or "")
  local values = name == "speculative" and {draft = case.draft} or nil
  return jobs.make(case.model, name, arguments, case.prompt or PROMPTS[1], values)
end

local function run(...)
  return host.job(make(...))
end

local function run_well(name, case, more)
  local result = run(name, case, more)
  assert(not result.error, result.error and name .. ": " .. result.error.message)
  return result
end

-- Passes over the weights of all models.
local function passes(name, case, more)
  local before = llm.stats().passes
  run_well(name, case, more)
  return llm.stats().passes - before
end

local function with(case, fields)
  local twin = {}
  for key, value in pairs(case) do twin[key] = value end
  for key, value in pairs(fields) do twin[key] = value end
  return twin
end

-- What a result says, but for its times.
local function said(result)
  return {ids = result.ids, text = result.text, finish = result.finish, score = result.score,
    outputs = result.outputs, logprobs = result.logprobs, counts = result.counts}
end

-- All of them, or the one named, make what sample makes; without a chain lookahead what greedy
-- does.
local function assert_exact(case, only)
  local wanted = said(run_well("sample", case))
  for _, name in ipairs(only and {only} or SPECULATIVE) do
    local want, more = wanted, case.own and case.own[name]
    if name == "lookahead" and case.chain == "" then want = said(run_well("greedy", case)) end
    local got = said(run_well(name, case, more))
    assert.same(want, got, ("%s, %s %s"):format(name, case.chain, more or ""))
  end
  return wanted
end

describe("exact speculation", function()
  local model, other, endless

  setup(function()
    model, other = h.builtin(), h.builtin {device = "ref", ctx = 256}
    endless = h.builtin {eog = {}}
  end)
  teardown(function()
    for _, m in ipairs {model, other, endless} do m:close() end
  end)

  it("equals plain sampling token for token under one seed, with every chain", function()
    for i, chain in ipairs(CHAINS) do
      for j = i, i + 1 do
        assert_exact {model = model, draft = model, prompt = PROMPTS[j % #PROMPTS + 1],
          chain = chain, common = "-n 20 --seed " .. j}
      end
    end
  end)

  it("of lookahead without a chain is greedy, --min-tokens or not", function()
    local case = {model = model, prompt = "And he", chain = ""}
    for _, common in ipairs {"-n 60", "-n 60 --min-tokens 60"} do
      local want = said(run_well("greedy", with(case, {common = common})))
      assert.same(want, said(run_well("lookahead", with(case, {common = common}))))
    end
  end)

  it("does so on the reference device", function()
    for i = 1, #CHAINS, 3 do
      local chain = CHAINS[i]
      assert_exact {model = other, draft = model, prompt = PROMPTS[i % #PROMPTS + 1], chain = chain,
        common = ("-n 10 --seed %d"):format(i)}
    end
  end)

  it("does so on each architecture, with drafts of a coarser or an unlike model", function()
    for _, names in ipairs {{"llama-f32", "llama-q4_0"}, {"llama-q8_0", "llama-iq4_nl"},
      {"qwen3-f32", "qwen3-q4_0"}, {"qwen2-f32", "qwen3-f32"}, {"gemma3-f32", "gemma3-f32"},
      {"gpt2-f32", "gpt2-f32"}} do
      for _, device in ipairs {"cpu", "ref"} do
        local big <close> = h.tiny(names[1], {device = device})
        local small <close> = h.tiny(names[2], {device = "cpu"})
        if big.vocab_size == small.vocab_size then
          for _, chain in ipairs {"--temperature 0", "--temperature 0.6"} do
            assert_exact {model = big, draft = small, prompt = "the cat sat on the mat",
              chain = chain, common = "-n 24"}
          end
        end
      end
    end
  end)

  it("does so whatever its own options are", function()
    local own = {
      speculative = {"--drafts 0", "--drafts 1", "--drafts 9"},
      prompt_lookup = {"--drafts 0", "--drafts 1", "--drafts 30", "--ngram 1", "--ngram 50"},
      lookahead = {"--window 1", "--ngram 2", "--ngram 6", "--guesses 0", "--guesses 1",
        "--window 1 --ngram 2 --guesses 1", "--window 12 --ngram 4 --guesses 12"},
      early_exit = {"--drafts 0", "--drafts 9", "--exit 1", "--exit 4", "--confidence 0",
        "--confidence 1"},
    }
    for name, list in pairs(own) do
      for _, more in ipairs(list) do
        assert_exact({model = model, draft = other, chain = "--temperature 0.3",
          common = "-n 24 --seed 4", own = {[name] = more}}, name)
      end
    end
  end)

  it("ends at every length, inside drafts too", function()
    for n = 1, 12 do
      assert_exact {model = model, draft = model, prompt = PROMPTS[2], common = "-n " .. n,
        chain = "--temperature 0.2"}
    end
  end)

  it("ends at an end token, inside drafts too", function()
    local case = {model = model, draft = model, chain = "--temperature 0.6", common = "-n 12"}
    local ids, seen = assert_exact(case).ids, {}
    for i, id in ipairs(ids) do
      local ending <close> = h.builtin {eog = {id}}
      local got = assert_exact(with(case, {model = ending, draft = ending}))
      assert.equal("eos", got.finish)
      assert.equal(seen[id] or i, #got.ids)
      seen[id] = seen[id] or i
    end
  end)

  it("ends at a stop text, inside drafts too", function()
    local case = {model = model, draft = model, chain = "--temperature 0", common = "-n 24"}
    local whole = run_well("sample", case)
    for first = 2, #whole.text - 3, 7 do
      local stop = whole.text:sub(first, first + 2)
      local chain = "--temperature 0 --stop " .. stop:gsub(" ", "%%20")
      assert.equal("stop", assert_exact(with(case, {chain = chain})).finish)
    end
  end)

  it("ends where the context does", function()
    local prompt = model:encode(PROMPTS[3])
    for room = 0, 20, 5 do
      local narrow <close> = h.builtin {ctx = #prompt + room, eog = {}}
      for _, chain in ipairs {"--temperature 0.2", "--temperature 0"} do
        local got = assert_exact {model = narrow, draft = narrow, prompt = prompt, chain = chain}
        assert.equal(room + 1, #got.ids)
      end
    end
  end)

  it("goes on where the context of the draft model ends", function()
    local prompt = model:encode(PROMPTS[3])
    for _, ctx in ipairs {1, #prompt - 1, #prompt, #prompt + 1, #prompt + 7} do
      local narrow <close> = h.builtin {ctx = ctx}
      assert_exact({model = model, draft = narrow, prompt = prompt, chain = "--temperature 0.2",
        common = "-n 24"}, "speculative")
    end
  end)

  it("never asks for more rows than it may", function()
    for _, name in ipairs {"speculative", "prompt_lookup", "early_exit"} do
      for _, max_rows in ipairs {1, 3} do
        local few <close> = h.builtin {max_rows = max_rows}
        assert_exact({model = few, draft = few, prompt = PROMPTS[2], common = "-n 20",
          chain = "--temperature 0.2"}, name)
      end
    end
    for _, opts in ipairs {{max_rows = 20}, {piece = 20}} do
      local few <close> = h.builtin(opts)
      local result = run("lookahead", {model = few}, "--ngram 3 --window 5 --guesses 5")
      assert.equal("input", result.error.kind)
      assert.equal("trees of 21 guesses asked, a pass takes 20", result.error.message)
      assert_exact({model = few, common = "-n 20", chain = "--temperature 0.2",
        own = {lookahead = "--ngram 3 --window 5 --guesses 4"}}, "lookahead")
    end
  end)

  it("begins with a prompt of one token and one of many pieces", function()
    local pieces <close> = h.builtin {piece = 5}
    local first = model:encode(PROMPTS[1])[1]
    for _, prompt in ipairs {{first}, model:encode(PROMPTS[3])} do
      assert_exact {model = pieces, draft = model, prompt = prompt, common = "-n 20",
        chain = "--temperature 0.5", own = {lookahead = "--window 1 --ngram 2 --guesses 1"}}
    end
  end)

  it("gives the log-probabilities of the model", function()
    local got = assert_exact {model = model, draft = model, chain = "--temperature 0.5",
      common = "-n 10 --logprobs 2"}
    assert.equal(#got.ids, #got.logprobs)
  end)

  it("makes the same side by side as alone", function()
    local list, alone = {}, {}
    for i, name in ipairs {"sample", table.unpack(SPECULATIVE)} do
      for j, prompt in ipairs(PROMPTS) do
        local case = {model = model, draft = other, prompt = prompt, common = "-n 12 --seed " .. i,
          chain = CHAINS[(3 * i + j) % #CHAINS + 1]}
        list[#list + 1], alone[#alone + 1] = make(name, case), said(run_well(name, case))
      end
    end
    for i, result in ipairs((jobs.run_all(list, 6))) do assert.same(alone[i], said(result)) end
  end)

  it("draws with the memory of samplers as if nothing had been guessed", function()
    local path = h.write(h.scratch "alternate.lua", [[
      -- keeps the k best: k grows by one with each call, and remembers what came of it
      return function(opts)
        local most = opts.k
        return function(logits, seqs)
          local ks = {}
          for i, seq in ipairs(seqs) do
            seq.calls = (seq.calls or 0) + 1
            ks[i] = (seq.calls + seq.ids[#seq]) % most + 1
          end
          return logits:top_k(ks)
        end
      end]])
    for seed = 1, 3 do
      assert_exact {model = model, draft = model, chain = "--sampler " .. path .. "(k=5)",
        common = "-n 30 --seed " .. seed}
    end
  end)

  it("of a draft that is the model itself accepts every token", function()
    for _, chain in ipairs {"", "--temperature 0", "--temperature 0.7"} do
      for _, drafts in ipairs {1, 3, 5} do
        local n = 4 * (drafts + 1)
        local case = {model = endless, draft = endless, chain = chain}
        local common = ("-n %d --drafts %d"):format(n, drafts)
        -- each round: `drafts` passes of the draft, and one for as many tokens and one
        assert.equal(n, passes("speculative", case, common))
        local all = (" --exit %d --confidence 0"):format(model.n_layers)
        assert.equal(n, passes("early_exit", case, common .. all))
      end
    end
  end)

  it("takes fewer passes than tokens where the text repeats itself", function()
    local case = {model = endless, chain = "--temperature 0",
      prompt = "And Adam begat Seth, and Seth begat Enos, and Enos begat "}
    assert.equal(48, passes("sample", case, "-n 48"))
    assert(passes("prompt_lookup", case, "-n 48") < 38)
    assert(passes("lookahead", case, "-n 48") < 44)
  end)

  it("takes one pass a token, and one for the prompt, where nothing is drafted", function()
    local case = {model = model, draft = model, chain = "--temperature 0"}
    for name, more in pairs {speculative = "--drafts 0", prompt_lookup = "--drafts 0",
      early_exit = "--drafts 0"} do
      assert.equal(16, passes(name, case, more .. " -n 16"))
    end
  end)

  it("has no option without an effect on the passes", function()
    local near <close> = h.tiny("llama-q4_0", {device = "cpu"})
    local tiny <close> = h.tiny("llama-q8_0", {device = "cpu"})
    local case = {model = endless, chain = "--temperature 0", prompt = PROMPTS[2]}
    for name, list in pairs {
      speculative = {"--drafts 1", "--drafts 4"},
      prompt_lookup = {"--drafts 1", "--drafts 12", "--ngram 1", "--ngram 6"},
      lookahead = {"--window 1", "--window 9", "--ngram 2", "--ngram 5", "--guesses 0",
        "--guesses 9"},
      early_exit = {"--drafts 1", "--drafts 6", "--exit 1", "--exit 4", "--confidence 0",
        "--confidence 1"},
    } do
      local counts = {}
      for _, more in ipairs(list) do
        local option = more:match "^%S+"
        counts[option] = counts[option] or {}
        local pair = name == "speculative" and {model = tiny, draft = near} or {}
        table.insert(counts[option], passes(name, with(case, pair), more .. " -n 60"))
      end
      for option, pair in pairs(counts) do
        assert.not_equal(pair[1], pair[2], name .. " " .. option)
      end
    end
  end)

  it("refuses a missing draft model and one of another vocabulary", function()
    local result = run("speculative", {model = model})
    assert.equal("input", result.error.kind)
    assert.equal("no draft model: give --draft", result.error.message)
    local tiny <close> = h.tiny "llama-f32"
    result = run("speculative", {model = model, draft = tiny})
    assert.equal("input", result.error.kind)
    assert.equal(("the draft model has a vocabulary of %d, the model of %d"):format(tiny.vocab_size,
      model.vocab_size), result.error.message)
  end)

  it("refuses an exit behind the last layer", function()
    local result = run("early_exit", {model = model}, "--exit 5")
    assert.equal("input", result.error.kind)
    assert.equal("--exit 5: the model has 4 layers", result.error.message)
  end)

  it("has at most 60 lines of code a strategy, none over 100 columns", function()
    for _, name in ipairs(SPECULATIVE) do
      local n = 0
      for line in io.lines("scripts/" .. name .. ".lua") do
        assert(utf8.len(line) <= 100, line)
        if not line:find "^%s*$" and not line:find "^%s*%-%-" then n = n + 1 end
      end
      assert(n <= 60, name .. ": " .. n)
    end
  end)
end)

describe("llm.speculation", function()
  it("room counts the guesses that can still be of use", function()
    local seq = llm.seq {1, 2}
    local opt = {max_tokens = 5, max_rows = 100}
    assert.equal(3, speculation.room(opt, seq, 3))
    assert.equal(4, speculation.room(opt, seq, 9)) -- four guesses and a draw
    seq:push(7)
    assert.equal(3, speculation.room(opt, seq, 9))
    assert.equal(1, speculation.room({max_tokens = 5, max_rows = 2}, seq, 9))
  end)

  it("pace follows what was right", function()
    assert.equal(1, speculation.pace(8, 8, 0, 8))
    assert.equal(4, speculation.pace(8, 8, 3, 8))
    assert.equal(4, speculation.pace(2, 2, 2, 8))
    assert.equal(4, speculation.pace(2, 1, 1, 8))
    assert.equal(8, speculation.pace(8, 8, 8, 8))
    assert.equal(5, speculation.pace(5, 0, 0, 8))
    assert.equal(0, speculation.pace(0, 0, 0, 0))
  end)

  it("a tree shares the nodes of guesses that begin alike", function()
    local tree = speculation.tree(llm.seq {5, 6})
    local a = tree:add(1, 7)
    local b = tree:add(a, 8)
    assert.equal(a, tree:add(1, 7))
    assert.equal(b, tree:add(a, 8))
    assert.equal(4, tree:add(1, 8))
    assert.same({6, 7, 8, 8}, tree.ids)
    assert.same({0, 1, 2, 1}, tree.parents)
  end)

  -- A text of the ids in `wanted`, verified with guesses; returns what was emitted in each step.
  local function steps_of(verify, wanted, guesses_of)
    local model <close> = h.tiny "llama-f32"
    local kv, seq, steps = model:cache(), llm.seq {1, 2}, {}
    local function draw(_, seqs) return llm.tensor {wanted[#seqs[1] - 1]} end
    model:forward(kv, 1)
    repeat
      steps[#steps + 1] = {}
      local over = verify(model, kv, seq, guesses_of(seq), draw, function(id)
        table.insert(steps[#steps], id)
        return #seq == 2 + #wanted and "length" or nil
      end)
      if not over then assert.equal(#seq, #kv + (#kv < #seq and 1 or 0)) end
    until over
    return steps
  end

  it("verify takes what agrees and the draw that does not", function()
    local script = {{3, 4, 9, 9}, {6}, {}, {8, 9, 9}}
    local steps = steps_of(function(model, kv, seq, ahead, draw, emit)
      local over = speculation.verify(model, kv, seq, ahead, draw, emit)
      if not over then speculation.rewind(kv, #seq - 1) end
      return over
    end, {3, 4, 5, 6, 7, 8, 9}, function(seq)
      local ahead = seq:fork()
      for _, id in ipairs(table.remove(script, 1)) do ahead:push(id) end
      return ahead
    end)
    assert.same({{3, 4, 5}, {6, 7}, {8}, {9}}, steps)
  end)

  it("verify_tree takes the branch that agrees, and the cache keeps that alone", function()
    local script = {{{3, 9}, {3, 4, 9}, {9}}, {}, {{9}, {7, 8}, {7, 9}}}
    local steps = steps_of(speculation.verify_tree, {3, 4, 5, 6, 7, 8, 9}, function(seq)
      local tree = speculation.tree(seq)
      for _, guess in ipairs(table.remove(script, 1)) do
        local node = 1
        for _, id in ipairs(guess) do node = tree:add(node, id) end
      end
      return tree
    end)
    assert.same({{3, 4, 5}, {6}, {7, 8, 9}}, steps)
  end)
end)
