-- Coins for samplers that do something now and then. A coin is a function of (seed; stream,
-- position of the token in the output), as noise is, and independent of it: a text depends on
-- neither neighbours nor schedule.

local llm = require "llm"

local COINS = 1 << 41 -- streams of coins lie above those of sequences

-- A list with 1 or 0 for each sequence: 1 with this probability. seed: the third argument of a
-- stage (nil: 0).
return function(seqs, seed, probability)
  local rng, out = llm.rng(seed), {}
  for r, seq in ipairs(seqs) do
    local u = rng:fork(COINS + seq.stream):at(#seq - seq.n_prompt + 1):uniform()
    out[r] = u < probability and 1 or 0
  end
  return out
end
