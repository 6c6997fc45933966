-- Dynamic temperature: from `min` where the model is sure to `max` where it is not, by the entropy
-- as a share of the most that this many ids can have, to the power of `exponent` (the idea of Zhang
-- et al. 2024, "EDT: improving large language models' generation by entropy-based dynamic
-- temperature sampling", in the form of kalomaze 2023, "dynamic temperature", as in llama.cpp).
-- min, max: 0 or more; exponent: above 0, default 1.
local check = require "llm.check"

return function(opts)
  local low, high = check.number(opts, "min", nil, 0), check.number(opts, "max", nil, 0)
  local exponent = check.number(opts, "exponent", 1, 1e-6)
  return function(logits)
    local most = logits:gt(-math.huge):sum():log():clamp(1e-9)
    local share = (logits:entropy() / most):clamp(0, 1) ^ exponent
    return logits / (share * (high - low) + low):clamp(1e-6)
  end
end
