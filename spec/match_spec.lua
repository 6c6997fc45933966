-- What samplers share: repetitions of ids, texts as ids, breakers.
local llm = require "llm"
local match = require "llm.match"
local new_breakers = require "llm.breakers"
local phrases = require "llm.phrases"
local ragged = require "llm.ragged"
local h = require "spec.helper"

-- Lists of few different ids, so that they repeat themselves.
local function random_lists(n)
  local rng, out = llm.rng(11), {}
  for i = 1, n do
    out[i] = {}
    for k = 1, math.floor(rng:uniform() * 30) do out[i][k] = math.floor(rng:uniform() * 3) end
  end
  return out
end

-- match.repeats by the definition.
local function repeats(ids, first, reach, least)
  local out, last = {}, #ids
  for at = first + 1, last do
    local n = 0
    while at - 1 - n >= first and ids[at - 1 - n] == ids[last - n] do n = n + 1 end
    n = math.min(n, reach)
    if n >= least then out[ids[at]] = math.max(out[ids[at]] or n, n) end
  end
  return out
end

describe("match", function()
  it("repeats finds for each id the longest repetition that it would prolong", function()
    for _, ids in ipairs(random_lists(300)) do
      for _, case in ipairs {{1, math.huge, 0}, {1, math.huge, 2}, {4, math.huge, 1}, {2, 2, 1}} do
        local first, reach, least = table.unpack(case)
        assert.same(repeats(ids, first, reach, least), match.repeats(ids, first, reach, least))
      end
    end
  end)

  it("repeats takes time in proportion to the length", function()
    local same = {}
    for i = 1, 200000 do same[i] = 7 end
    local start = os.clock()
    assert.same({[7] = 199999}, match.repeats(same, 1, math.huge, 1))
    assert(os.clock() - start < 5)
  end)

  it("followers finds what came after the last n ids before", function()
    for _, ids in ipairs(random_lists(200)) do
      for n = 0, 3 do
        local wanted = {}
        for at = n, #ids - 1 do
          local is_there = #ids >= n
          for i = 0, n - 1 do is_there = is_there and ids[at - i] == ids[#ids - i] end
          if is_there then wanted[#wanted + 1] = ids[at + 1] end
        end
        assert.same(wanted, match.followers(ids, n))
      end
    end
  end)

  it("ends_with compares the end", function()
    local seq = llm.seq {1, 2, 3}
    assert.is_true(match.ends_with(seq, {}))
    assert.is_true(match.ends_with(seq, {2, 3}))
    assert.is_true(match.ends_with(seq, {1, 2, 3}))
    assert.is_false(match.ends_with(seq, {0, 1, 2, 3}))
    assert.is_false(match.ends_with(seq, {1, 3}))
  end)
end)

describe("ragged", function()
  it("adds amounts of any number to each row, equal ids together", function()
    local out = ragged.add(llm.logits {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}},
      {{2}, {}, {1, 1, 0}}, {{5}, {}, {1, 2, 4}})
    assert.same({{0, 0, 5}, {0, 0, 0}, {4, 3, 0}}, out:lists())
    local x = llm.logits {{1, 2}}
    assert.equal(x, ragged.add(x, {{}}, {{}}))
  end)
end)

describe("phrases", function()
  it("are the ids that go on a text with these very bytes", function()
    for _, name in ipairs {"llama-f32", "gpt2-f32", "gemma3-f32"} do
      local model <close> = h.tiny(name)
      for _, text in ipairs {"the", " the", "a b", "\n", " \n x", "'s", "é", "…", "  two"} do
        local ids = model:encode "x"
        local before = model:decode(ids)
        for _, id in ipairs(phrases.ids(model, text)) do ids[#ids + 1] = id end
        assert.equal(before .. text, model:decode(ids), name)
      end
    end
  end)

  it("need a model", function()
    assert.has_error(function() phrases.ids(nil, "x") end)
  end)
end)

describe("breakers", function()
  -- A vocabulary of bytes, and two tokens of several.
  local texts = {[256] = "one:", [257] = ": t"}
  local model = {vocab_size = 258, token = function(_, id)
    return texts[id] or string.char(id)
  end}
  local row = {}
  for i = 1, model.vocab_size do row[i] = 0 end
  local logits = llm.logits {row}

  local function ids_of(text)
    return {text:byte(1, -1)}
  end

  it("tell how many ids stand behind the last one", function()
    local breaks = new_breakers(model, {":", "ab", "bcd"})(logits)
    assert.equal(math.huge, breaks.reach(ids_of "xyz", 1))
    assert.equal(3, breaks.reach(ids_of "a:b:xyz", 1))
    assert.equal(0, breaks.reach(ids_of "xyz:", 1))
    assert.equal(2, breaks.reach(ids_of "xyzabxy", 1))
    assert.equal(1, breaks.reach(ids_of "abcdx", 1)) -- the one that ends last
    assert.equal(math.huge, breaks.reach(ids_of ":xyz", 2))
    assert.equal(1, breaks.reach({120, 256, 121}, 1))
    assert.equal(0, breaks.reach({120, 257}, 1))
  end)

  it("know the ids whose text holds one", function()
    local breaks = new_breakers(model, {":", "ne"})(logits)
    assert.is_true(breaks.has(58))
    assert.is_true(breaks.has(256))
    assert.is_false(breaks.has(110))
  end)

  it("are none without a model, or for another vocabulary", function()
    for _, breaks in ipairs {new_breakers(nil, {":"})(logits), new_breakers(model, {})(logits),
      new_breakers(model, {":"})(llm.logits {{1, 2}})} do
      assert.equal(math.huge, breaks.reach({58}, 1))
      assert.is_false(breaks.has(58))
    end
  end)
end)
