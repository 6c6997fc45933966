-- Presence and frequency penalties: lower the logit of an id by `presence` if it is in the output
-- and by `frequency` for each time it is (OpenAI API reference, "frequency and presence
-- penalties"). The prompt does not count. repetition (default 1, off): a repetition penalty before
-- these that leaves the prompt out too.
local check = require "llm.check"
local history = require "llm.history"

return function(opts)
  local presence, frequency = check.number(opts, "presence", 0), check.number(opts, "frequency", 0)
  local repetition = check.number(opts, "repetition", 1, 1e-6)
  return function(logits, seqs)
    local ids, counts = history(seqs, true)
    if not ids then return logits end
    local x, seen = logits:gather(ids), counts:gt(0)
    local scaled = (x / repetition):where(x:gt(0), x * repetition):where(seen, x)
    return logits:set_at(ids, scaled - counts * frequency - seen * presence)
  end
end
