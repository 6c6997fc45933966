-- What the model itself thinks of a text, for --logprobs: runs it once more where the strategy
-- gave no logits.

local json = require "llm.json"

local logprobs = {}

local PIECE = 32 -- rows of logits at a time

-- Entries {id, logprob, top_ids, top_scores} of each id after the prompt.
function logprobs.compute(model, prompt, ids, n_top)
  local entries = {}
  if #ids == 0 then return entries end
  local kv <close> = model:cache()
  if #prompt > 1 then model:forward(kv, table.move(prompt, 1, #prompt - 1, 1, {})) end
  local fed = table.move(ids, 1, #ids - 1, 2, {prompt[#prompt]})
  local size = math.min(PIECE, model.max_rows)
  for first = 1, #fed, size do
    local last = math.min(#fed, first + size - 1)
    local piece = table.move(fed, first, last, 1, {})
    local rows = model:forward(kv, piece, {rows = "all"}):log_softmax()
    local wanted = {}
    for i = first, last do wanted[#wanted + 1] = {ids[i]} end
    local column = rows:gather(llm.tensor(wanted)):lists()
    local scores, tops
    if n_top > 0 then
      scores, tops = rows:topk(math.min(n_top, model.vocab_size))
      scores, tops = scores:lists(), tops:lists()
    end
    for i = first, last do
      local at = i - first + 1
      entries[i] = {id = ids[i], logprob = column[at][1],
        top_scores = scores and scores[at], top_ids = tops and tops[at]}
    end
  end
  return entries
end

function logprobs.sum(entries)
  local sum = 0
  for _, entry in ipairs(entries) do sum = sum + entry.logprob end
  return sum
end

-- The entries as the result schema has them.
function logprobs.report(model, entries)
  local out = json.list {}
  for i, entry in ipairs(entries) do
    local top = json.list {}
    for k, id in ipairs(entry.top_ids or {}) do
      top[k] = {id = id, token = model:token(id), logprob = entry.top_scores[k]}
    end
    out[i] = {id = entry.id, token = model:token(entry.id), logprob = entry.logprob, top = top}
  end
  return out
end

return logprobs
