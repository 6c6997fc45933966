-- Log-probabilities of the ids of a text: the model's own, before filters, and, where they are
-- asked for, those of the distribution that the sampler chain leaves ("processed").

local llm = require "llm"
local json = require "llm.json"

local logprobs = {}

local PIECE = 32 -- rows of logits at a time

-- Of rows of logits and an id for each: lists of log-probabilities, scores and ids of the n_top
-- likeliest (nil for 0).
local function measure(rows, ids, n_top)
  local wanted = {}
  for i, id in ipairs(ids) do wanted[i] = {id} end
  rows = rows:log_softmax()
  local column, scores, tops = rows:gather(llm.tensor(wanted)):lists(), nil, nil
  if n_top > 0 then
    scores, tops = rows:topk(math.min(n_top, rows.n_columns))
    scores, tops = scores:lists(), tops:lists()
  end
  local entries = {}
  for i, id in ipairs(ids) do
    entries[i] = {id = id, logprob = column[i][1], top_scores = scores and scores[i],
      top_ids = tops and tops[i]}
  end
  return entries
end

-- The entry {id, logprob, top_scores, top_ids, processed} of an id that was chosen with this row.
-- job: {model, opt, stages}; seq: the sequence before the id.
function logprobs.entry(job, row, id, seq)
  local n_top = job.opt.logprobs or 0
  local entry = measure(row, {id}, n_top)[1]
  if job.opt.processed_logprobs then
    entry.processed = measure(job.stages(row, {seq}, job.opt.seed), {id}, n_top)[1]
  end
  return entry
end

-- Entries of each id after the prompt; runs the model once more, where the strategy gave no logits.
function logprobs.compute(job, ids)
  local model, prompt, entries, seq = job.model, job.prompt, {}, llm.seq(job.prompt)
  if #ids == 0 then return entries end
  local kv <close> = model:cache()
  if #prompt > 1 then model:forward(kv, table.move(prompt, 1, #prompt - 1, 1, {})) end
  local fed = table.move(ids, 1, #ids - 1, 2, {prompt[#prompt]})
  local size = math.min(PIECE, model.max_rows)
  for first = 1, #fed, size do
    local last = math.min(#fed, first + size - 1)
    local rows = model:forward(kv, table.move(fed, first, last, 1, {}), {rows = "all"})
    local piece = measure(rows, table.move(ids, first, last, 1, {}), job.opt.logprobs or 0)
    for i = 1, #piece do
      if job.opt.processed_logprobs then
        piece[i].processed = logprobs.entry(job, rows:row(i), ids[first + i - 1], seq).processed
        seq:push(ids[first + i - 1])
      end
      entries[first + i - 1] = piece[i]
    end
  end
  return entries
end

function logprobs.sum(entries)
  local sum = 0
  for _, entry in ipairs(entries) do sum = sum + entry.logprob end
  return sum
end

-- The entries as the result schema has them; `field`: "processed", or nil for the model's own.
function logprobs.report(model, entries, field)
  local out = json.list {}
  for i, entry in ipairs(entries) do
    entry = field and entry[field] or entry
    local top = json.list {}
    for k, id in ipairs(entry.top_ids or {}) do
      top[k] = {id = id, token = model:token(id), logprob = entry.top_scores[k]}
    end
    out[i] = {id = entry.id, token = model:token(entry.id), logprob = entry.logprob, top = top}
  end
  return out
end

return logprobs
