-- Measures of texts and of lists of ids. Characters are code points; what is no UTF-8 counts as
-- U+FFFD.

local llm_text = require "llm.text"

local metrics = {}

-- The code points of a text.
function metrics.characters(text)
  local list = {}
  for _, c in utf8.codes(llm_text.sanitize(text)) do list[#list + 1] = c end
  return list
end

-- ---- chrF ----

-- White space as Unicode has it, and the separators 0x1C to 0x1F.
local SPACES = {[0x20] = true, [0x85] = true, [0xA0] = true, [0x1680] = true, [0x2028] = true,
  [0x2029] = true, [0x202F] = true, [0x205F] = true, [0x3000] = true}
for c = 0x09, 0x0D do SPACES[c] = true end
for c = 0x1C, 0x1F do SPACES[c] = true end
for c = 0x2000, 0x200A do SPACES[c] = true end

local Profile = {}

-- The n-grams of characters of a text, n = 1 … order (6), without white space: counts[n][gram] and
-- totals[n]. Stands for the text in chrf, where a text is compared many times.
function metrics.profile(text, order)
  order = order or 6
  local chars, profile = {}, setmetatable({counts = {}, totals = {}}, Profile)
  for _, c in ipairs(metrics.characters(text)) do
    if not SPACES[c] then chars[#chars + 1] = utf8.char(c) end
  end
  for n = 1, order do
    local counts = {}
    for i = 1, #chars - n + 1 do
      local gram = table.concat(chars, "", i, i + n - 1)
      counts[gram] = (counts[gram] or 0) + 1
    end
    profile.counts[n], profile.totals[n] = counts, math.max(0, #chars - n + 1)
  end
  return profile
end

local function matches(a, b)
  local sum = 0
  for gram, n in pairs(a) do sum = sum + math.min(n, b[gram] or 0) end
  return sum
end

-- chrF of a text against a reference, 0 to 1 (Popović 2015, "chrF: character n-gram F-score for
-- automatic MT evaluation"): the F-score, in which recall weighs beta (2) times as much, of mean
-- precision and mean recall of character n-grams, n = 1 … order (6). White space does not count;
-- the means are over those n that both texts have. That is sacrebleu's default, whose figures are
-- 100 times these. Two texts without a character are equal: 1. Either may be a profile.
function metrics.chrf(text, reference, opts)
  local order, beta = opts and opts.order or 6, opts and opts.beta or 2
  local a = getmetatable(text) == Profile and text or metrics.profile(text, order)
  local b = getmetatable(reference) == Profile and reference or metrics.profile(reference, order)
  if a.totals[1] == 0 and b.totals[1] == 0 then return 1.0 end
  local precision, recall, n_orders = 0, 0, 0
  for n = 1, math.min(order, #a.totals, #b.totals) do
    if a.totals[n] > 0 and b.totals[n] > 0 then
      local n_same = matches(a.counts[n], b.counts[n])
      precision, recall = precision + n_same / a.totals[n], recall + n_same / b.totals[n]
      n_orders = n_orders + 1
    end
  end
  if precision + recall == 0 then return 0.0 end
  precision, recall = precision / n_orders, recall / n_orders
  return (1 + beta ^ 2) * precision * recall / (beta ^ 2 * precision + recall)
end

-- ---- edit distance ----

local WORD = 64 -- rows of the table in one integer

-- masks[c][w]: bit i is set where a[(w − 1)·WORD + i + 1] is c.
local function positions(a, n_words)
  local masks = {}
  for i, c in ipairs(a) do
    local mask, w = masks[c], (i - 1) // WORD + 1
    if not mask then
      mask = {}
      for k = 1, n_words do mask[k] = 0 end
      masks[c] = mask
    end
    mask[w] = mask[w] | 1 << (i - 1) % WORD
  end
  return masks
end

local function entries(x)
  return type(x) == "string" and metrics.characters(x) or x
end

-- The least number of insertions, deletions and substitutions of one that make a into b
-- (Levenshtein 1966, "Binary codes capable of correcting deletions, insertions, and reversals").
-- Texts: of characters; lists: of their entries. A column of the table at a time as bits: up and
-- down hold where it rises and falls by one from row to row (Myers 1999, "A fast bit-vector
-- algorithm for approximate string matching based on dynamic programming"; in words: Hyyrö 2003,
-- "A bit-vector algorithm for computing Levenshtein and Damerau edit distances").
function metrics.edit_distance(a, b)
  a, b = entries(a), entries(b)
  if #a == 0 or #b == 0 then return math.max(#a, #b) end
  local n_words, up, down = (#a + WORD - 1) // WORD, {}, {}
  local masks, last = positions(a, n_words), 1 << (#a - 1) % WORD
  for w = 1, n_words do up[w], down[w] = -1, 0 end
  local distance = #a
  for _, c in ipairs(b) do
    local mask, rise, fall = masks[c], 1, 0 -- of the row above, from the column before to this one
    for w = 1, n_words do
      local x = (mask and mask[w] or 0) | fall
      local diagonal = ((x & up[w]) + up[w]) ~ up[w] | x | down[w]
      local plus, minus = down[w] | ~(diagonal | up[w]), up[w] & diagonal
      if w == n_words then
        distance = distance + (plus & last ~= 0 and 1 or 0) - (minus & last ~= 0 and 1 or 0)
      end
      local below, under = plus >> WORD - 1, minus >> WORD - 1
      plus, minus = plus << 1 | rise, minus << 1 | fall
      up[w], down[w] = minus | ~(diagonal | plus), plus & diagonal
      rise, fall = below, under
    end
  end
  return distance
end

-- 1 − edit distance ÷ length of the longer: 1 for equals, 0 where nothing is common.
function metrics.similarity(a, b)
  a, b = entries(a), entries(b)
  local longest = math.max(#a, #b)
  return longest == 0 and 1.0 or 1 - metrics.edit_distance(a, b) / longest
end

-- ---- variety ----

-- The number of different n-grams in lists, and of all.
local function count(lists, n)
  local seen, n_different, n_all = {}, 0, 0
  for _, list in ipairs(lists) do
    for i = 1, #list - n + 1 do
      local gram = table.concat(list, " ", i, i + n - 1)
      if not seen[gram] then n_different = n_different + 1 end
      seen[gram], n_all = true, n_all + 1
    end
  end
  return n_different, n_all
end

-- distinct-n of several lists of ids together: different n-grams ÷ all n-grams (Li et al. 2016, "A
-- diversity-promoting objective function for neural conversation models"). nil if there is none.
function metrics.distinct(lists, n)
  local n_different, n_all = count(lists, n)
  if n_all > 0 then return n_different / n_all end
end

-- The share of a list's n-grams (n = 4) that it had before: 1 − different ÷ all (seq-rep-n of
-- Welleck et al. 2020, "Neural text generation with unlikelihood training"). 0 for lists shorter
-- than n.
function metrics.repetition(list, n)
  local n_different, n_all = count({list}, n or 4)
  return n_all > 0 and 1 - n_different / n_all or 0.0
end

return metrics
