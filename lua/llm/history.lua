-- What sequences have seen, as tensors that fit gather and set_at: a row for each sequence.

local llm = require "llm"

-- Rows shorter than the longest repeat their first entry, which writes the same value twice; one
-- without any gets `empty`.
local function pad(lists, empty)
  local longest = 0
  for _, list in ipairs(lists) do longest = math.max(longest, #list) end
  for _, list in ipairs(lists) do
    for i = #list + 1, longest do list[i] = list[1] or empty end
  end
  return longest
end

-- The ids of each sequence once each, as i32 [rows, longest], and how often each occurs, as f32
-- of the same shape (0: not at all); nil if nothing was seen. `output_only` leaves the prompt
-- out.
return function(seqs, output_only)
  local rows, counts = {}, {}
  for r, seq in ipairs(seqs) do
    local ids, row, count, place = seq.ids, {}, {}, {}
    for i = output_only and seq.n_prompt + 1 or 1, #ids do
      local id = ids[i]
      local at = place[id] or #row + 1
      place[id], row[at], count[at] = at, id, (count[at] or 0) + 1
    end
    rows[r], counts[r] = row, count
  end
  if pad(rows, 0) == 0 then return nil end
  pad(counts, 0)
  return llm.tensor(rows), llm.tensor(counts, "f32")
end
