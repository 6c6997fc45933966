-- Min-p: keeps the ids at least p times as likely as the likeliest (Nguyen et al. 2024, "Turning up
-- the heat: min-p sampling for creative and coherent LLM outputs"). p: 0 (off) to 1.
local check = require "llm.check"

return function(opts)
  local p = check.number(opts, "p", nil, 0, 1)
  return function(logits) return logits:min_p(p) end
end
