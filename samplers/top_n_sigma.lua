-- Top-n-sigma: keeps the logits within n standard deviations of the largest (Tang et al. 2024,
-- "Top-nσ: not all logits are you need"). n: 0 or less is off.
local check = require "llm.check"

return function(opts)
  local n = check.number(opts, "n")
  return function(logits)
    if n <= 0 then return logits end
    return logits:cut_below(logits:max() - logits:std() * n)
  end
end
