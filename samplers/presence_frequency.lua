-- Presence and frequency penalties: lower the logit of an id by `presence` if it is in the output
-- and by `frequency` for each time it is (OpenAI API reference, "frequency and presence
-- penalties"). The prompt does not count.
local check = require "llm.check"
local history = require "llm.history"

return function(opts)
  local presence = check.number(opts, "presence", 0)
  local frequency = check.number(opts, "frequency", 0)
  return function(logits, seqs)
    local ids, counts = history(seqs, true)
    if not ids then return logits end
    local amount = counts * frequency + counts:gt(0) * presence
    return logits:set_at(ids, logits:gather(ids) - amount)
  end
end
