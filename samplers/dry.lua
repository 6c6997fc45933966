-- DRY, "don't repeat yourself": lowers the logit of an id that would prolong a repetition of n ids
-- by multiplier · base ^ (n − allowed_length), if n is at least allowed_length (p-e-w 2024, "DRY: a
-- modern repetition penalty", text-generation-webui pull request 5677). No repetition is followed
-- back over a breaker, and what holds a breaker is never penalised. multiplier: 0 (off) or more;
-- base: 1 or more, default 1.75; allowed_length: default 2; last_n: how many ids it looks at,
-- default -1, all; breakers: texts, by default newline, ":", '"' and "*".
local check = require "llm.check"
local match = require "llm.match"
local new_breakers = require "llm.breakers"
local ragged = require "llm.ragged"

return function(opts, model)
  local multiplier = check.number(opts, "multiplier", nil, 0)
  local base, last_n = check.number(opts, "base", 1.75, 1), check.integer(opts, "last_n", -1, -1)
  local allowed = check.integer(opts, "allowed_length", 2, 0)
  local breakers = new_breakers(model, check.texts(opts, "breakers", {"\n", ":", "\"", "*"}))
  local most = base > 1.000001 and 88.7228391 // math.log(base) or math.huge -- fits a float
  return function(logits, seqs)
    local ids, amounts = {}, {}
    for r, seq in ipairs(seqs) do
      local seen, breaks = seq.ids, breakers(logits)
      local first = last_n < 0 and 1 or math.max(1, #seen - last_n + 1)
      ids[r], amounts[r] = {}, {}
      for id, n in pairs(match.repeats(seen, first, breaks.reach(seen, first), allowed)) do
        if #seen - first + 1 > allowed and not breaks.has(id) then
          table.insert(ids[r], id)
          table.insert(amounts[r], -multiplier * base ^ math.min(n - allowed, most))
        end
      end
    end
    return ragged.add(logits, ids, amounts)
  end
end
