-- Chains of samplers: their text, their order, what a strategy gets.
local chain = require "llm.chain"
local llm = require "llm"
local h = require "spec.helper"

local function parse(text)
  local stages, message = chain.parse(text)
  return assert(stages, message)
end

describe("the text of a chain", function()
  it("names samplers in order, with a bare value or named ones", function()
    assert.same({
      {name = "top_k", bare = 40},
      {name = "dry", params = {multiplier = 0.8, base = 1.75}},
      {name = "xtc", params = {}},
      {name = "temperature", bare = 1e-5},
    }, parse "top_k=40, dry(multiplier=0.8, base = 1.75),xtc , temperature = 1e-5")
  end)

  it("has numbers, words and quoted texts as values", function()
    assert.same({{name = "a", params = {x = -1, y = true, z = "b, (c)", w = "word"}}},
      parse "a(x=-1, y=true, z=\"b, (c)\", w=word)")
  end)

  it("has lists as values, with quotes, commas and brackets in them", function()
    assert.same({
      {name = "bad_words", params = {words = {"foo, (x", "b]\"ar"}, ids = {}}},
      {name = "sequence_bias", params = {bias = {{{1, 2}, -3.5}, {{7}, -math.huge}}}},
      {name = "top_k", bare = 3},
    }, parse [=[bad_words(words=["foo, (x", 'b]"ar'], ids=[]),
      sequence_bias(bias = [[[1, 2], -3.5], [[7],-inf]]), top_k=3]=])
  end)

  it("has escapes in quoted texts", function()
    assert.same({{name = "dry", params = {breakers = {"\n", ":", "\"", "'", "\\n", "é", "\\d"}}}},
      parse [=[dry(breakers=["\n", ':', "\"", '\'', "\\n", "\u00e9", "\d"])]=])
  end)

  it("may be empty", function()
    assert.same({}, parse "")
    assert.same({}, parse "  ")
  end)

  it("is refused where it is none", function()
    for _, text in ipairs {"top_k=", "top_k(", "top_k)", "a(b)", "a(b=1,b=2)", ",", "a,,b", "=3",
      "a=nan", "a(b=1", "a b", "a='x", "a(b=[1)", "a(b=[1,])", "a(b=[1]])", "a=[1", "a('b'=1)",
      "a(b='x'y)", "a(b=(1))"} do
      local stages, message = chain.parse(text)
      assert.is_nil(stages, text)
      assert(message:find("is not NAME", 1, true), message)
    end
  end)
end)

describe("a chain as data", function()
  it("is a list of texts and of records", function()
    local stages = assert(chain.parse {"top_k=3, xtc", {name = "dry", params = {multiplier = 1}},
      {name = "top_p", bare = 0.9}, {temperature = 0.5}, {min_p = {p = 0.1}}, {name = "eta"},
      {bad_words = {words = {"a"}}}})
    assert.same({
      {name = "top_k", bare = 3}, {name = "xtc", params = {}},
      {name = "dry", params = {multiplier = 1}}, {name = "top_p", bare = 0.9},
      {name = "temperature", bare = 0.5}, {name = "min_p", params = {p = 0.1}},
      {name = "eta", params = {}}, {name = "bad_words", params = {words = {"a"}}},
    }, stages)
    assert.same({}, chain.parse {})
    assert.same({{name = "top_k", bare = 3}}, chain.parse {top_k = 3})
    assert.same({{name = "dry", params = {base = 2}}},
      chain.parse {name = "dry", params = {base = 2}})
    assert.same({{name = "top_k", bare = 3}}, chain.collect {sampler = {"top_k=3"}})
  end)

  it("has a text, one for all chains that are equal", function()
    local data = {"top_k=3, xtc",
      {name = "dry", params = {multiplier = 0.1, breakers = {"\n", "\""}}},
      {sequence_bias = {bias = {{{1, 2}, -0.5}, {{3}, -math.huge}}}},
      {name = "x", bare = "a, \\n)"}}
    local text = assert(chain.write(data))
    assert.equal([=[top_k=3, xtc(), dry(breakers=["\n", "\""], multiplier=0.1), ]=]
      .. [=[sequence_bias(bias=[[[1, 2], -0.5], [[3], -inf]]), x="a, \\n)"]=], text)
    assert.same(chain.parse(data), chain.parse(text))
    assert.equal(text, chain.write(text))
    assert.is_nil(chain.write "a(")
  end)

  it("is refused where it is none", function()
    for message, list in pairs {
      ["sampler 1 of the list is a number"] = {3},
      ["sampler 2 of the list has no name"] = {"top_k=3", {params = {}, bare = 3}},
      ["sampler 1 of the list has params that are a number"] = {{name = "x", params = 3}},
      ["sampler 1 of the list has the unknown key 'k'"] = {{name = "x", k = 3}},
      ["sampler 1 of the list has params and bare"] = {{name = "x", bare = 1, params = {}}},
      ["sampler 'a(' is not NAME"] = {"a("},
      ["a chain of samplers is a text or a list, got a number"] = 3,
    } do
      local stages, got = chain.parse(list)
      assert.is_nil(stages)
      assert(got:find(message, 1, true), got)
    end
  end)
end)

describe("the chain of the single options", function()
  it("is penalties, temperature, top-k, top-p, min-p", function()
    local stages = chain.collect {top_p = 0.9, temperature = 0.5, min_p = 0.1, top_k = 4,
      repetition_penalty = 1.2, frequency_penalty = 0.3, min_tokens = 2}
    assert.same({
      {name = "min_new_tokens", params = {n = 2}},
      {name = "repetition", params = {penalty = 1.2}},
      {name = "presence_frequency", params = {frequency = 0.3}},
      {name = "temperature", params = {temperature = 0.5}},
      {name = "top_k", params = {k = 4}}, {name = "top_p", params = {p = 0.9}},
      {name = "min_p", params = {p = 0.1}},
    }, stages)
    assert.same({}, chain.collect {})
  end)

  it("does not go with --sampler", function()
    local stages, message = chain.collect {sampler = "top_k=3", top_p = 0.5}
    assert.is_nil(stages)
    assert.equal("--sampler and --top-p: give one of them", message)
  end)
end)

describe("a chain", function()
  local model
  setup(function() model = h.builtin() end)
  teardown(function() model:close() end)

  local function wrong(message, text)
    local filter, got = chain.build(parse(text), model)
    assert.is_nil(filter)
    assert(got:find(message, 1, true), got)
  end

  it("refuses unknown samplers and parameters, and lists the known ones", function()
    wrong("sampler foo: unknown sampler; known: ", "foo")
    wrong("sampler top_k: unknown parameter 'j'; known: k", "top_k(k=3, j=3)")
    wrong("sampler top_k: k is missing", "top_k")
    wrong("sampler top_p: p must be a number from 0 to 1, got 1.5", "top_p=1.5")
    wrong("sampler top_k: k must be an integer of at least 0, got 2.5", "top_k=2.5")
    wrong("sampler top_k: k must be an integer of at least 0, got x", "top_k=x")
    wrong("sampler min_p: unknown parameter 'q'; known: p", "min_p(q=0.05)")
    wrong("no ./samplers/foo.lua", "foo")
    wrong("takes several parameters, name them: presence, frequency", "presence_frequency=1")
  end)

  it("passes each stage what the one before left", function()
    local probs = {0.35, 0.25, 0.20, 0.05, 0.04, 0.04, 0.04, 0.03}
    for i, p in ipairs(probs) do probs[i] = math.log(p) end
    local filter = assert(chain.build(parse "top_k=4, top_p=0.82", model))
    local out = filter(llm.logits {probs}, {llm.seq {0}}):tolist()
    local kept = {}
    for i, x in ipairs(out) do if x > -math.huge then kept[#kept + 1] = i - 1 end end
    assert.same({0, 1, 2}, kept)
  end)

  it("may hold a sampler of the user's, by path", function()
    local path = h.write(h.scratch "mine.lua",
      "return function(opts) local x = opts.by return function(l) return l * x end end")
    local filter = assert(chain.build({{name = path, bare = 2}}, model))
    assert.same({2, 4}, filter(llm.logits {{1, 2}}, {}):tolist())
  end)

  it("knows the parameters that a stage reads while it runs", function()
    local path = h.write(h.scratch "lazy.lua", [[return function(opts) return function(logits)
      return logits * opts.by + (opts.plus or 0) end end]])
    local function build(stage)
      stage.name = path
      return chain.build({stage}, model)
    end
    assert.same({2, 4}, assert(build {params = {by = 2}})(llm.logits {{1, 2}}, {}):tolist())
    assert.same({5, 7}, assert(build {params = {by = 2, plus = 3}})(llm.logits {{1, 2}}, {})
      :tolist())
    local _, message = build {params = {by = 2, minus = 3}}
    assert(message:find("unknown parameter 'minus'; known: by, plus", 1, true), message)
    _, message = build {bare = 2}
    assert(message:find("takes several parameters, name them: by, plus", 1, true), message)
  end)

  it("names sampler and parameter where one is missing", function()
    local path = h.write(h.scratch "lazy.lua", [[return function(opts) return function(logits)
      return logits * opts.by end end]])
    local filter = assert(chain.build({{name = path, params = {}}}, model))
    local ok, err = pcall(filter, llm.logits {{1, 2}}, {})
    assert.is_false(ok)
    assert.equal("llm.Error", llm.type(err))
    assert(err.message:find("^sampler .*lazy.lua: .*%(not given: by%)$"), err.message)
  end)

  it("refuses a stage that returns another shape or no logits, by name", function()
    for body, message in pairs {
      ["l:max()"] = "returned 1 × 1, not logits of 1 × 2",
      ["llm.tensor {{1.0, 2.0}}"] = "returned 1 × 2, not logits of 1 × 2",
      ["l:rows {1, 1}"] = "returned logits of 2 × 2, not logits of 1 × 2",
      ["nil"] = "returned a nil, not logits of 1 × 2",
    } do
      local path = h.write(h.scratch "shape.lua",
        ("return function() return function(l) return %s end end"):format(body))
      local filter = assert(chain.build({{name = path, params = {}}}, model))
      local ok, err = pcall(filter, llm.logits {{1, 2}}, {})
      assert.is_false(ok)
      assert(err.message:find(message, 1, true), err.message)
    end
  end)

  it("names a sampler that is none", function()
    for text, message in pairs {
      ["return 3"] = "returns a number, not a function",
      ["return function() end"] = "makes a nil, not a function",
      ["return function() error('boom', 0) end"] = "boom",
    } do
      local path = h.write(h.scratch "bad.lua", text)
      local filter, got = chain.build({{name = path, params = {}}}, model)
      assert.is_nil(filter)
      assert.equal(("sampler %s: %s"):format(path, message), (got:gsub("%(logits, seqs%)$", "")))
    end
    local path = h.write(h.scratch "bad.lua",
      "return function() return function() return 3 end end")
    local filter = assert(chain.build({{name = path, params = {}}}, model))
    local ok, err = pcall(filter, llm.logits {{1, 2}}, {})
    assert.is_false(ok)
    assert(err.message:find("bad.lua returned a number, not logits of 1 × 2", 1, true), err.message)
  end)
end)

describe("a chain that is to explain itself", function()
  it("tells for each stage and row how many ids were kept and what mass they had", function()
    local told = {}
    local filter = assert(chain.build(parse "temperature=1, top_k=3, top_p=0.6", nil,
      function(record) told[#told + 1] = record end))
    local row = {math.log(0.4), math.log(0.3), math.log(0.2), math.log(0.1)}
    local seqs = {llm.seq {1, 2}, llm.seq {1}}
    seqs[2]:push(0)
    filter(llm.logits {row, {0, 0, 0, 0}}, seqs)
    assert.equal(6, #told)
    for i, wanted in ipairs {
      {1, 1, "temperature", 4, 1}, {2, 2, "temperature", 4, 1}, {1, 1, "top_k", 3, 0.9},
      {2, 2, "top_k", 3, 0.75}, {1, 1, "top_p", 2, 0.7 / 0.9}, {2, 2, "top_p", 2, 2 / 3},
    } do
      local got = told[i]
      assert.same({wanted[1], wanted[2], wanted[3], wanted[4]},
        {got.step, got.row, got.stage, got.kept})
      assert.equal(4, got.total)
      assert(math.abs(wanted[5] - got.mass) < 1e-6, got.mass)
    end
    assert.equal("top_p kept 2 of 4, mass 0.7778", chain.explain_line(told[5]))
  end)

  it("gives the same logits", function()
    local row = {3, 1, 2, 0}
    local plain = assert(chain.build(parse "top_k=2"))
    local telling = assert(chain.build(parse "top_k=2", nil, function() end))
    assert.same(plain(llm.logits {row}, {llm.seq {0}}):tolist(),
      telling(llm.logits {row}, {llm.seq {0}}):tolist())
  end)
end)

describe("opt.sampler.blame", function()
  -- What a choice raises after this chain, as it is and with blame.
  local function fail_with(stages, logits, seqs)
    local sampler = chain.sampler(assert(chain.build(stages)), llm.seq {1, 2}, 5)
    local ok, err = pcall(function() return sampler(logits, seqs):tolist() end)
    assert.is_false(ok)
    for _, seq in ipairs(seqs or {}) do seq:push(0) end -- what the strategy did before the read
    return err, sampler.blame(err), sampler
  end

  it("names the sampler that left no token, and the step", function()
    local path = h.write(h.scratch "none.lua", [[return function() return function(l)
      return l:mask {0, 1, 2} end end]])
    local seqs = {llm.seq {1}, llm.seq {1, 2}}
    seqs[1]:push(0)
    seqs[2]:push(0)
    seqs[2]:push(1)
    local err, better = fail_with({{name = "top_k", bare = 2}, {name = path, params = {}},
      {name = "temperature", bare = 0.5}}, llm.logits {{1, 2, 3}, {1, 2, 3}}, seqs)
    assert.equal("no_finite", better.kind)
    assert.equal(("sampler %s left no token at step 2 of row 1"):format(path), better.message)
    assert.equal(err.traceback, better.traceback)
  end)

  it("does so where the sampler empties one row of several, or a list of a bundled one does",
    function()
      local _, better = fail_with({{name = "bad_words", params = {ids = {{0}, {1}}}}},
        llm.logits {{1, 2}})
      assert.equal("sampler bad_words left no token at step 1", better.message)
      local seqs = {llm.seq {0}, llm.seq {0, 1}}
      _, better = fail_with({{name = "no_repeat_ngram", bare = 1}},
        llm.logits {{1, 2}, {1, 2}}, seqs)
      assert.equal("sampler no_repeat_ngram left no token at step 1 of row 2", better.message)
    end)

  it("is what a job's error says, whatever the strategy", function()
    local path = h.write(h.scratch "third.lua", [[return function() return function(l, seqs)
      local ids = {}
      for id = 0, l.n_columns - 1 do ids[id + 1] = id end
      return #seqs[1] - seqs[1].n_prompt < 2 and l or l:mask(ids) end end]])
    for _, script in ipairs {"greedy", "sample", "beam --beam 1"} do
      local _, err, code = h.run(("%s -n 5 --quiet -p 'In the' --sampler %s"):format(script,
        h.quote("top_k=9, " .. path)))
      assert.equal(1, code)
      local message = ("llmlua: sampler %s left no token at step 3\n"):format(path)
      assert.equal(message, err:sub(1, #message))
    end
  end)

  it("tells nan that a sampler made from nan of the model, with the step", function()
    local path = h.write(h.scratch "nan.lua", [[return function() return function(l)
      return l * (0 / 0) end end]])
    local _, better = fail_with({{name = path, params = {}}}, llm.logits {{1, 2, 3}})
    assert.equal("nan", better.kind)
    assert.equal(("sampler %s made nan at step 1"):format(path), better.message)
    _, better = fail_with({{name = "top_k", bare = 2}}, llm.logits {{1, 0 / 0, 3}})
    assert.equal("nan in the logits at step 1", better.message)
    _, better = fail_with({}, llm.logits {{-math.huge, -math.huge}})
    assert.equal("no finite entry in the logits at step 1", better.message)
  end)

  it("leaves other errors, and what it cannot explain, as they are", function()
    local sampler = chain.sampler(assert(chain.build {}), llm.seq {1}, 0)
    local err = llm.error("no_finite", "x")
    assert.equal(err, sampler.blame(err))
    sampler(llm.logits {{1, 2}})
    assert.equal(err, sampler.blame(err))
    assert.equal("text", sampler.blame "text")
    local other = llm.error("misuse", "x")
    assert.equal(other, sampler.blame(other))
    local logits = llm.logits {{1, 2}}
    sampler(logits)
    logits:close()
    assert.equal(err, sampler.blame(err))
  end)

end)

describe("opt.sampler", function()
  local function make(seed, own)
    local filter = assert(chain.build({}, nil))
    return chain.sampler(filter, own or llm.seq {1, 2}, seed)
  end
  local row = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}

  it("draws with the sequence's stream at the position in the output", function()
    local logits = llm.logits {row, row}
    local a, b = llm.seq {1, 2}, llm.seq {5}
    a:push(3)
    b.stream = 9
    local ids = make(7)(logits, {a, b}):tolist()
    assert.equal(llm.logits({row}):sample(llm.rng(7):at(2)):item(), ids[1])
    assert.equal(llm.logits({row}):sample(llm.rng(7):fork(9):at(1)):item(), ids[2])
  end)

  it("uses prompt and what was emitted where no sequences are given", function()
    local own = llm.seq {1, 2}
    own:push(4)
    own:push(5)
    assert.equal(llm.logits({row}):sample(llm.rng(3):at(3)):item(),
      make(3, own)(llm.logits {row}):item())
  end)

  it("raises unless there is a sequence for each row", function()
    assert.has_error(function() make(1)(llm.logits {row, row}) end)
    assert.has_error(function() make(1)(llm.logits {row}, {llm.seq {1}, llm.seq {1}}) end)
    assert.has_error(function() make(1)(3) end)
  end)

  it("tells stages the job's seed", function()
    local path = h.write(h.scratch "seed.lua", [[return function() return function(l, _, seed)
      return l * seed end end]])
    local filter = assert(chain.build {{name = path, params = {}}})
    local sampler = chain.sampler(filter, llm.seq {1}, 7)
    assert.same({7, 14}, sampler.filter(llm.logits {{1, 2}}):tolist())
  end)

  it("knows whether it was asked", function()
    local sampler = make(1)
    assert.is_false(sampler.asked)
    sampler.filter(llm.logits {row})
    assert.is_true(sampler.asked)
  end)
end)
