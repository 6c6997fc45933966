-- XTC, exclude top choices: with this probability, at each step, drops all ids that reach the
-- threshold but the least likely of them (p-e-w 2024, "Exclude top choices (XTC)",
-- text-generation-webui pull request 6335). probability: 0 (off) to 1 (the default); threshold: 0
-- to 1, default 0.1; above 0.5 no two can reach it, which is off.
local check = require "llm.check"
local coin = require "llm.coin"

return function(opts)
  local probability = check.number(opts, "probability", 1, 0, 1)
  local threshold = check.number(opts, "threshold", 0.1, 0, 1)
  return function(logits, seqs, seed)
    local p = logits:softmax()
    local least = p:where(p:ge(math.max(threshold, 1e-30)), math.huge):min()
    local top = p:gt(least:where(coin(seqs, seed, probability), math.huge))
    return logits:where(top:eq(0), -math.huge)
  end
end
