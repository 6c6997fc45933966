-- Temperature: flattens (above 1) or sharpens (below 1) the distribution (Ackley, Hinton and
-- Sejnowski 1985, "A learning algorithm for Boltzmann machines"). 0 keeps the likeliest id alone,
-- as does what is too small for 32-bit floats. temperature: 0 or more.
local check = require "llm.check"

return function(opts)
  local t = check.number(opts, "temperature", nil, 0)
  return function(logits)
    if t < 1e-30 then return logits:top_k(1) end
    return logits / t
  end
end
