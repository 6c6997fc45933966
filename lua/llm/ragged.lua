-- Lists of different lengths, one for each row of logits.

local llm = require "llm"

local ragged = {}

-- Makes all lists as long as the longest, in place. Returns the length.
function ragged.pad(lists, fill)
  local longest = 0
  for _, list in ipairs(lists) do longest = math.max(longest, #list) end
  for _, list in ipairs(lists) do
    for i = #list + 1, longest do list[i] = fill end
  end
  return longest
end

-- Adds amounts[r][i] to the logit of ids[r][i] in row r; changes the lists.
function ragged.add(logits, ids, amounts)
  if ragged.pad(ids, 0) == 0 then return logits end
  ragged.pad(amounts, 0)
  return logits:add_at(llm.tensor(ids, "i32"), llm.tensor(amounts, "f32"))
end

return ragged
