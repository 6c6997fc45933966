-- No end of text before n new tokens: masks the model's end tokens (transformers'
-- MinNewTokensLengthLogitsProcessor). n: 0 (off) or more.
local check = require "llm.check"

return function(opts, model)
  local n, eog = check.integer(opts, "n", nil, 0), model.eog
  return function(logits, seqs)
    local banned, any = {}, false
    for r, seq in ipairs(seqs) do
      local early = #seq - seq.n_prompt < n
      banned[r], any = early and eog or {}, any or early
    end
    return any and #eog > 0 and logits:mask(banned) or logits
  end
end
