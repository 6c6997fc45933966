-- What must stand at a place of the output: from its token `at` (default 1) on, these ids or those
-- of the text, each with all others masked (transformers' ForceTokensLogitsProcessor; Wolf et al.
-- 2020). ids: a list; or text.
local check = require "llm.check"
local phrases = require "llm.phrases"

return function(opts, model)
  local text, at = check.text(opts, "text", ""), check.integer(opts, "at", 1, 1)
  local ids = text ~= "" and phrases.ids(model, text) or check.ids(opts, "ids")
  return function(logits, seqs)
    local wanted, on = {}, {}
    for r, seq in ipairs(seqs) do wanted[r] = {ids[#seq - seq.n_prompt + 2 - at]} end
    for r, id in ipairs(wanted) do on[r] = #id end
    if not table.concat(on):find "1" then return logits end
    return logits:clamp(0, 0):only(wanted):where(on, logits)
  end
end
