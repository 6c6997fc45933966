-- Texts as the ids that spell them where text goes on.

local fail = require "llm.fail"

local phrases = {}

-- The ids of a text in the middle of another: without the space that some tokenizers put before the
-- first word, and without special tokens.
function phrases.ids(model, text)
  if not model then fail.raise("misuse", "a text needs a model") end
  local opts = {add_special = false}
  local line, whole = model:encode("\n", opts), model:encode("\n" .. text, opts)
  for i, id in ipairs(line) do
    if whole[i] ~= id then return model:encode(text, opts) end
  end
  return table.move(whole, #line + 1, #whole, 1, {})
end

return phrases
