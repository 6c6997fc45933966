-- Top-p, or nucleus: keeps the fewest likeliest ids whose probability is p together (Holtzman et
-- al. 2020, "The curious case of neural text degeneration"). p: 0 to 1 (off).
local check = require "llm.check"

return function(opts)
  local p = check.number(opts, "p", nil, 0, 1)
  return function(logits) return logits:top_p(p) end
end
