-- Words that must not appear: masks the last token of each where those before it were just made
-- (transformers' NoBadWordsLogitsProcessor; Wolf et al. 2020). ids: a list of lists; words: a list
-- of texts, in the model's own spelling of them; leading_space: whether " word" is banned with
-- "word" (default true).
local check = require "llm.check"
local phrases = require "llm.phrases"
local sequence_bias = require "samplers.sequence_bias"

return function(opts, model)
  local bias, space = {}, check.boolean(opts, "leading_space", true)
  for _, ids in ipairs(check.id_lists(opts, "ids", {})) do bias[#bias + 1] = {ids, -math.huge} end
  for _, word in ipairs(check.texts(opts, "words", {})) do
    bias[#bias + 1] = {phrases.ids(model, word), -math.huge}
    bias[#bias + 1] = space and {phrases.ids(model, " " .. word), -math.huge} or nil
  end
  return sequence_bias {bias = bias}
end
