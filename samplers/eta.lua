-- Eta sampling: keeps the ids with a probability of at least min(epsilon, √epsilon · e^−entropy),
-- or the likeliest (Hewitt, Manning and Liang 2022, "Truncation sampling as language model
-- desmoothing"). epsilon: 0 (off) to 1.
local check = require "llm.check"

return function(opts)
  local epsilon = check.number(opts, "epsilon", nil, 0, 1)
  return function(logits)
    if epsilon == 0 then return logits end
    local eta = (math.log(epsilon) / 2 - logits:entropy()):clamp(nil, math.log(epsilon))
    return logits:cut_below(logits:logsumexp() + eta)
  end
end
