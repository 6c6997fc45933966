-- Text as it is made: streamed = whole, whatever the pieces are.
local new_stream = require "llm.stream"
local text = require "llm.text"
local h = require "spec.helper"

-- A model whose token i is the i-th string, and whose text loses the one space it begins with, as
-- SentencePiece's does.
local function fake(tokens, strips)
  return {decode = function(_, ids)
    local parts = {}
    for i, id in ipairs(ids) do parts[i] = tokens[id] end
    local whole = table.concat(parts)
    return strips and whole:gsub("^ ", "") or whole
  end}
end

-- Feeds all tokens; returns the text and what the sink had after each.
local function feed(tokens, stops, options)
  options = options or {}
  local model = fake(tokens, options.strips)
  local given, after = {}, {}
  local prompt = options.prompt or {}
  local stream = new_stream(model, prompt, stops or {}, function(bytes)
    given[#given + 1] = bytes
  end)
  for id = #prompt + 1, #tokens do
    local over = stream:push(id, id == #prompt + 1 and options.skip or nil)
    after[#after + 1] = table.concat(given)
    if over then return table.concat(given), after, true end
  end
  stream:flush()
  assert.equal(stream:text(), table.concat(given))
  return table.concat(given), after, false
end

describe("streamed text", function()
  it("is the text of prompt and ids less that of the prompt", function()
    assert.equal("leading x", feed({" ", "leading", " x"}, nil, {strips = true}))
    local tokens = {"a", " ", "leading", " x"}
    assert.equal(" leading x", feed(tokens, nil, {strips = true, prompt = {1}}))
    assert.equal(" world", feed({" hello", "", " world"}, nil, {strips = true, prompt = {1, 2}}))
    assert.equal(" x y", feed({"", " x", " y"}, nil, {prompt = {1}}))
  end)

  it("holds back incomplete UTF-8, then gives it", function()
    local whole, after = feed {"a\xE2", "\x82", "\xAC", "b", "\xF0\x9F"}
    assert.equal("a€b\xF0\x9F", whole)
    assert.same({"a", "a", "a€", "a€b", "a€b"}, after)
  end)

  it("does not hold back bytes that can be no character", function()
    local _, after = feed {"\xFF", "\xC0\x80", "\xE2\x28", "x"}
    assert.same({"\xFF", "\xFF\xC0\x80", "\xFF\xC0\x80\xE2\x28", "\xFF\xC0\x80\xE2\x28x"}, after)
  end)

  it("ends before a stop string that spans tokens", function()
    local whole, after, over = feed({"one ", "EN", "D two"}, {"END"})
    assert.equal("one ", whole)
    assert.is_true(over)
    assert.same({"one ", "one ", "one "}, after)
  end)

  it("ends before a stop string inside a token", function()
    assert.equal("one ", (feed({"one END two"}, {"END"})))
    assert.equal("", (feed({"END"}, {"END"})))
  end)

  it("is not cut by a stop string that never comes, nor by half of one", function()
    assert.equal("one EN two EN", (feed({"one ", "EN", " two ", "EN"}, {"END"})))
  end)

  it("shows nothing that is taken back", function()
    math.randomseed(7)
    for _ = 1, 300 do
      local letters, tokens = {"a", "b", "\xE2\x82\xAC", "\xE2", "\x82"}, {}
      for i = 1, 12 do
        local parts = {}
        for k = 1, math.random(1, 3) do parts[k] = letters[math.random(#letters)] end
        tokens[i] = table.concat(parts)
      end
      local stops = {"abab", "b\xE2\x82", "\x82\xAC\x82"}
      local whole, after = feed(tokens, stops)
      for _, shown in ipairs(after) do assert.equal(shown, whole:sub(1, #shown)) end
      local at_once = feed({table.concat(tokens)}, stops)
      assert.equal(at_once, whole)
    end
  end)

  it("leaves out the bytes to skip, over several tokens", function()
    assert.equal("lo you", (feed({"hel", "lo", " you"}, nil, {skip = 3})))
    assert.equal("o you", (feed({"hel", "lo", " you"}, nil, {skip = 4})))
  end)

  it("is what a model decodes at once", function()
    local model <close> = h.builtin()
    for _, bytes in ipairs {"And the earth was without", "naïve € 🙂 ", "\xFF\xFE x", "  two"} do
      local prompt = model:encode "In the"
      local ids = model:encode(bytes, {add_special = false})
      local parts = {}
      local stream = new_stream(model, prompt, {}, function(piece) parts[#parts + 1] = piece end)
      for _, id in ipairs(ids) do stream:push(id) end
      stream:flush()
      local whole = table.move(ids, 1, #ids, #prompt + 1, {table.unpack(prompt)})
      local plain = {render_special = false}
      assert.equal(model:decode(prompt, plain) .. table.concat(parts), model:decode(whole, plain))
      assert.equal(bytes, table.concat(parts))
    end
  end)
end)

describe("text", function()
  it("counts the bytes of an incomplete character", function()
    for s, n in pairs {
      [""] = 0, a = 0, ["é"] = 0, ["\xC3"] = 1, ["a\xE2\x82"] = 2, ["\xF0\x9F\x99"] = 3,
      ["€"] = 0, ["\x82"] = 0, ["\xC0"] = 0, ["\xF5\x80"] = 0, ["\xED\xA0"] = 0, ["\xE0\x80"] = 0,
    } do
      assert.equal(n, text.incomplete(s), ("%q"):format(s))
    end
  end)

  it("is made valid by one U+FFFD for each broken part", function()
    for s, wanted in pairs {
      ["ok é"] = "ok é", ["\xFF"] = "\u{FFFD}", ["a\xE2\x82b"] = "a\u{FFFD}b",
      ["\xE2\x82"] = "\u{FFFD}", ["\xED\xA0\x80"] = "\u{FFFD}\u{FFFD}\u{FFFD}",
      ["\xC0\x80"] = "\u{FFFD}\u{FFFD}", ["\xF0\x9F\x99\xF0"] = "\u{FFFD}\u{FFFD}", [""] = "",
    } do
      assert.equal(wanted, text.sanitize(s))
    end
  end)
end)
