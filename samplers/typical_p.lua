-- Locally typical sampling: keeps the fewest ids of mass p whose surprise is nearest to the entropy
-- (Meister et al. 2023, "Locally typical sampling"). p: 0 to 1 (off).
local check = require "llm.check"

return function(opts)
  local p = check.number(opts, "p", nil, 0, 1)
  return function(logits)
    return logits:threshold_mass(p, (logits:log_softmax() + logits:entropy()):abs())
  end
end
