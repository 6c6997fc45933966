-- Adds to the logits of single ids always, and to that of the last of several ids where the
-- sequence ends with those before it (transformers' SequenceBiasLogitsProcessor; Wolf et al. 2020).
-- bias: a list of {ids, x}; x may be −inf. As text: bias=[[[5], -2.5], [[8, 9], "-inf"]].
local llm = require "llm"
local check = require "llm.check"
local match = require "llm.match"

return function(opts)
  local entries, last = check.bias(opts, "bias"), {}
  for i, entry in ipairs(entries) do last[i] = table.remove(entry.ids) end
  return function(logits, seqs)
    local amounts = {}
    for r, seq in ipairs(seqs) do
      amounts[r] = {}
      for i, entry in ipairs(entries) do
        amounts[r][i] = match.ends_with(seq, entry.ids) and entry.x or 0
      end
    end
    return #last > 0 and logits:add_at(last, llm.tensor(amounts, "f32")) or logits
  end
end
