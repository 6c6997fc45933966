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

  it("may be empty", function()
    assert.same({}, parse "")
    assert.same({}, parse "  ")
  end)

  it("is refused where it is none", function()
    for _, text in ipairs {"top_k=", "top_k(", "top_k)", "a(b)", "a(b=1,b=2)", ",", "a,,b", "=3",
      "a=nan", "a(b=1", "a b", "a='x"} do
      local stages, message = chain.parse(text)
      assert.is_nil(stages, text)
      assert(message:find("is not NAME", 1, true), message)
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

  it("knows whether it was asked", function()
    local sampler = make(1)
    assert.is_false(sampler.asked)
    sampler.filter(llm.logits {row})
    assert.is_true(sampler.asked)
  end)
end)
