-- lua/llm/metrics.lua: chrF, edit distance, distinct-n, repetition.
local metrics = require "llm.metrics"

local function near(wanted, got)
  assert(math.abs(wanted - got) < 1e-12, ("%.17g, not %.17g"):format(got, wanted))
end

-- By the table of all prefixes.
local function distance_by_table(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local before = row[0]
    row[0] = i
    for j = 1, #b do
      local above = row[j]
      row[j] = math.min(above + 1, row[j - 1] + 1, before + (a[i] == b[j] and 0 or 1))
      before = above
    end
  end
  return row[#b]
end

describe("chrF", function()
  it("is the F-score of mean precision and mean recall", function()
    -- "abc", "abd": 2 of 3 characters, 1 of 2 pairs, 0 of 1 triple are common; no longer ones
    near(7 / 18, metrics.chrf("abc", "abd"))
    -- "ab", "abcabcabc": precision 1 and 1; recall 2 of 9 characters, 1 of 8 pairs
    local recall = (2 / 9 + 1 / 8) / 2
    near(5 * recall / (4 + recall), metrics.chrf("ab", "abcabcabc"))
    -- recall weighs more: the other way round it is precision that is low
    near(5 * recall / (4 * recall + 1), metrics.chrf("abcabcabc", "ab"))
    near(2 * recall / (1 + recall), metrics.chrf("ab", "abcabcabc", {beta = 1}))
  end)

  it("gives sacrebleu's figures", function() -- of version 2.6.0, divided by 100
    local cases = {
      {"the cat sat on the mat", "the cat is on the mat", 0.645779420625287, 0.7909821667661633},
      {"Grüße aus Köln", "Grüsse aus Köln", 0.6032933854576785, 0.7764324814342295},
      {"a", "abcdefg", 0.17241379310344823, 0.25},
      {"In the beginning God created the heaven and the earth.",
        "At first God made heaven and earth.", 0.42778407273754226, 0.4971960211200451},
      {"我爱北京天安门", "我爱天安门", 0.38065210704398644, 0.5616065350578625},
      {"xyz", "abc", 0.0, 0.0},
    }
    for _, case in ipairs(cases) do
      local text, reference, default, other = table.unpack(case)
      near(default, metrics.chrf(text, reference))
      near(other, metrics.chrf(text, reference, {order = 3, beta = 1}))
    end
  end)

  it("does not see white space", function()
    for _, text in ipairs {"a b c", " abc\n", "a\tb\r\nc", "a\u{3000}b\u{A0}c"} do
      near(1, metrics.chrf(text, "abc"))
    end
  end)

  it("is 1 for equals, also without a character, and 0 against nothing", function()
    for _, text in ipairs {"x", "a longer text", "äöü", "\xFF\xFE"} do
      near(1, metrics.chrf(text, text))
      near(0, metrics.chrf(text, ""))
      near(0, metrics.chrf("", text))
    end
    near(1, metrics.chrf("", ""))
    near(1, metrics.chrf(" ", "\n"))
  end)

  it("takes profiles for texts", function()
    local a, b = "the cat sat on the mat", "the cat is on the mat"
    near(metrics.chrf(a, b), metrics.chrf(metrics.profile(a), metrics.profile(b)))
    near(metrics.chrf(a, b), metrics.chrf(metrics.profile(a), b))
  end)
end)

describe("the edit distance", function()
  it("counts insertions, deletions and substitutions", function()
    assert.equal(3, metrics.edit_distance("kitten", "sitting"))
    assert.equal(2, metrics.edit_distance("flaw", "lawn"))
    assert.equal(4, metrics.edit_distance("", "four"))
    assert.equal(4, metrics.edit_distance("four", ""))
    assert.equal(0, metrics.edit_distance("", ""))
    assert.equal(0, metrics.edit_distance("same", "same"))
  end)

  it("counts characters, not bytes", function()
    assert.equal(1, metrics.edit_distance("Köln", "Koln"))
    assert.equal(1, metrics.edit_distance("\u{1F600}", "x"))
    assert.equal(1, metrics.edit_distance("a\xFFb", "ab"))
  end)

  it("is that of the plain table, whatever the length", function()
    local rng = llm.rng(7)
    local function random(n) return 1 + math.floor(n * rng:uniform()) end
    local function list(n, kinds)
      local out = {}
      for i = 1, n do out[i] = random(kinds) end
      return out
    end
    for _, n in ipairs {1, 2, 31, 63, 64, 65, 127, 128, 129, 200} do
      for _ = 1, 8 do
        local kinds = random(6)
        local a, b = list(n, kinds), list(random(n + 9) - 1, kinds)
        assert.equal(distance_by_table(a, b), metrics.edit_distance(a, b))
        assert.equal(distance_by_table(a, b), metrics.edit_distance(b, a))
      end
    end
  end)

  it("over the longer length makes a similarity of 0 to 1", function()
    near(1 - 3 / 7, metrics.similarity("kitten", "sitting"))
    near(1, metrics.similarity("", ""))
    near(0, metrics.similarity("ab", "cd"))
    near(0, metrics.similarity("", "cd"))
    near(0.75, metrics.similarity({1, 2, 3, 4}, {1, 2, 4}))
  end)
end)

describe("variety", function()
  it("distinct-n is different n-grams over all, of several lists together", function()
    near(3 / 5, metrics.distinct({{1, 2, 1}, {2, 3}}, 1))
    near(1, metrics.distinct({{1, 2, 1}, {2, 3}}, 2))
    near(2 / 4, metrics.distinct({{1, 2, 1, 2, 1}}, 2))
    near(2 / 3, metrics.distinct({{1, 2}, {1, 2}, {12}, {3, 4}}, 2)) -- none across a border
    assert.is_nil(metrics.distinct({{1}, {}}, 2))
  end)

  it("repetition is the share of n-grams that were there before", function()
    near(0, metrics.repetition {1, 2, 3, 4, 5})
    near(1 / 5, metrics.repetition {1, 2, 3, 4, 1, 2, 3, 4})
    near(4 / 5, metrics.repetition({7, 7, 7, 7, 7}, 1))
    near(0, metrics.repetition {1, 1, 1})
  end)

  it("tells ids apart that look alike when joined", function()
    near(1, metrics.distinct({{1, 23}, {12, 3}}, 2))
  end)
end)
