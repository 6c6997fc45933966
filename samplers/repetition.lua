-- Repetition penalty: divides positive logits and multiplies negative ones of every id seen in
-- prompt or output, once each (Keskar et al. 2019, "CTRL: a conditional transformer language
-- model for controllable generation", section 4.1). penalty: above 0; 1 is off.
local check = require "llm.check"
local history = require "llm.history"

return function(opts)
  local penalty = check.number(opts, "penalty", nil, 1e-6)
  return function(logits, seqs)
    local ids, counts = history(seqs)
    if penalty == 1 or not ids then return logits end
    local x = logits:gather(ids)
    local changed = (x / penalty):where(x:gt(0), x * penalty)
    return logits:set_at(ids, changed:where(counts, x))
  end
end
