-- No n-gram twice: masks what would repeat n ids in a row that prompt or output already have
-- (Paulus, Xiong and Socher 2018, "A deep reinforced model for abstractive summarization", section
-- 2.5). n: 0 (off) or more; 1 masks all that was seen.
local check = require "llm.check"
local match = require "llm.match"

return function(opts)
  local n = check.integer(opts, "n", nil, 0)
  return function(logits, seqs)
    if n == 0 then return logits end
    local banned = {}
    for r, seq in ipairs(seqs) do banned[r] = match.followers(seq.ids, n - 1) end
    return logits:mask(banned)
  end
end
