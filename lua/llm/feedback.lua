-- Samplers that steer by how surprising the ids are that were taken: a number for each sequence,
-- which changes after each step.

local LN2 = math.log(2)

-- The number now: `update`d if an id was pushed since the last call, the same if none was.
local function advance(state, seq, first, update)
  if not state then return first end
  if #seq == state.n then return state.value end
  local logprob = (state.row:gather({seq.ids[state.n + 1]}) - state.total):item()
  return logprob > -math.huge and update(state.value, -logprob / LN2) or state.value
end

-- A stage. key: the name under which a sequence keeps its state; first: the number at the start;
-- update(number, bits): the next one, bits being the surprise (−log2 p after the cut) of the id
-- that was taken (an id that had been cut changes nothing); cut(logits, numbers): the logits that
-- are left. A sequence must be asked at each of its steps: of ids pushed without, the first alone
-- counts. The state is {n = ids then, value, row, total}: the row that was left, and its logsumexp.
return function(key, first, update, cut)
  return function(logits, seqs)
    local values = {}
    for r, seq in ipairs(seqs) do values[r] = advance(seq[key], seq, first, update) end
    local left = cut(logits, values)
    local totals = left:logsumexp()
    for r, seq in ipairs(seqs) do
      seq[key] = {n = #seq, value = values[r], row = left:row(r), total = totals:row(r)}
    end
    return left
  end
end
