-- Epsilon sampling: keeps the ids with a probability of at least epsilon, or the likeliest
-- (Hewitt, Manning and Liang 2022, "Truncation sampling as language model desmoothing"). epsilon:
-- 0 (off) to 1.
local check = require "llm.check"

return function(opts)
  local epsilon = check.number(opts, "epsilon", nil, 0, 1)
  return function(logits)
    if epsilon == 0 then return logits end
    return logits:cut_below(logits:logsumexp() + math.log(epsilon))
  end
end
