-- Tail free sampling: cuts the tail where the curve of the sorted probabilities has gone flat: the
-- first ids that hold a share z of all its curvature stay, and the one after them (Phénix and Egan
-- 2019, "Tail free sampling"). z: 0 to 1 (off).
local check = require "llm.check"

return function(opts)
  local z = check.number(opts, "z", nil, 0, 1)
  return function(logits)
    local n = logits.n_columns - 2
    if z == 1 or n < 1 then return logits end
    local p = logits:softmax():sort() -- the tail first
    local slope = p:narrow(2, 2, n + 1) - p:narrow(2, 1, n + 1)
    local bend = (slope:narrow(2, 2, n) - slope:narrow(2, 1, n)):abs()
    return logits:threshold_k(bend:cumsum():ge(bend:sum() * (1 - z)):sum():clamp(1))
  end
end
