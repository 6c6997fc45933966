-- The green list of a watermark: a part `gamma` of the vocabulary that the ids before a place
-- choose. Id v is green where a · v + b, modulo 2^32 (Dietzfelbinger et al. 1997, "A reliable
-- randomized algorithm for the closest-pair problem": multiply-shift hashing), is in the lowest
-- part; a (odd) and b come from key and context by Philox. So the list of a whole row takes
-- three tensor operations, and one id can be asked alone.

local llm = require "llm"

local greenlist = {}

local rows = {} -- by their number: ids of a vocabulary

-- All ids of a vocabulary of n, as a row.
function greenlist.ids(n)
  if not rows[n] then
    local row = {}
    for i = 1, n do row[i] = i - 1 end
    rows[n] = llm.tensor({row}, "i32")
  end
  return rows[n]
end

local function word(rng)
  return math.floor(rng:uniform() * 2 ^ 32) - (1 << 31)
end

-- a and b of the place after ids[last], by the `width` ids up to there; nil if there are not as
-- many.
function greenlist.hash(key, ids, last, width)
  if last < width then return nil end
  local stream = width
  for i = last - width + 1, last do
    stream = (stream * 0x5851F42D4C957F2D + ids[i] + 1) & math.maxinteger
  end
  local rng = llm.rng(key):fork(stream):at(0)
  return word(rng) | 1, word(rng)
end

-- a and b of what comes next in each sequence, and 1, or 0 where it has not as many ids.
function greenlist.contexts(key, seqs, width)
  local a, b, known = {}, {}, {}
  for r, seq in ipairs(seqs) do
    local ids = width > 0 and seq.ids or {}
    a[r], b[r] = greenlist.hash(key, ids, #ids, width)
    known[r] = a[r] and 1 or 0
    a[r], b[r] = a[r] or 1, b[r] or 0
  end
  return a, b, known
end

-- 1 where an id is green, else 0. ids: i32, a row or a column; a, b: lists with one for each row.
function greenlist.test(ids, a, b, gamma)
  local hash = ids * llm.tensor(a, "i32") + llm.tensor(b, "i32")
  return hash:lt((gamma - 0.5) * 2 ^ 32) -- as signed numbers
end

return greenlist
