-- Top-k: keeps the k likeliest ids (Fan, Lewis and Dauphin 2018, "Hierarchical neural story
-- generation"). k: 0 (off) or more.
local check = require "llm.check"

return function(opts)
  local k = check.integer(opts, "k", nil, 0)
  return function(logits) return logits:top_k(k) end
end
