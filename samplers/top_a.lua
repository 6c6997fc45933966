-- Top-a: keeps the ids with probability of at least a · p_max², a bound that rises with how sure
-- the model is (BlinkDL 2023, "Top-a", RWKV-LM README). a: 0 (off) to 1.
local check = require "llm.check"

return function(opts)
  local a = check.number(opts, "a", nil, 0, 1)
  return function(logits)
    if a == 0 then return logits end
    local p_max = logits:max() - logits:logsumexp() -- all as logarithms
    return logits:cut_below(p_max * 2 + math.log(a) + logits:logsumexp())
  end
end
