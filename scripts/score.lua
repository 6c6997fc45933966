-- The log-probability of each token of a text given what stands before it, and the perplexity of
-- the whole: exp of the mean negative log-probability (Jelinek et al. 1977). A text longer than
-- the context is read in windows; each begins with the last `overlap` tokens of the one before,
-- which are context and not scored again. The first token has no log-probability, unless BOS goes
-- before it.
local json = require "llm.json"

local ORDER = {"tokens", "scored", "sum", "perplexity", "ids", "logprobs", "error",
  "kind", "message"}

local PIECE = 256 -- ids scored at a time: what is done is known when the work is interrupted

-- Calls each(i, logprob) for i = 2 … #ids.
local function score(model, ids, overlap, each)
  local done = 1
  while done < #ids do
    local first = math.max(1, done - overlap + 1)
    local last = math.min(#ids, first + model.ctx - 1)
    local kv <close> = model:cache()
    model:forward(kv, table.move(ids, first, done, 1, {}))
    while done < last do
      local upto = math.min(last, done + PIECE)
      local column = model:score(kv, table.move(ids, done + 1, upto, 1, {})):lists()
      for i = done + 1, upto do each(i, column[i - done][1]) end
      done = upto
    end
  end
end

return {
  about = "log-probability of each token of a text, and its perplexity",
  prompt = "text to score",
  common = {"prompt", "engine", "json", "quiet", "verbose", "version"},
  options = {
    overlap = {type = "integer", min = 1, help = "tokens of context at the start of each window; "
      .. "default: half the context"},
    bos = {default = false, help = "begin with the model's BOS token"},
    summary = {default = false, help = "only the last line"},
  },
  main = function(model, opt)
    local ids, overlap = opt.prompt_ids, opt.overlap or math.max(1, model.ctx // 2)
    if overlap >= model.ctx then
      error(llm.error("input", ("overlap %d, the context holds %d"):format(overlap, model.ctx)))
    end
    if opt.bos and model.bos and ids[1] ~= model.bos then table.insert(ids, 1, model.bos) end
    local logprobs, sum, n = json.list {json.null}, 0, 0
    local function show(i, logprob)
      if opt.json or opt.summary then return end
      local shown = logprob and ("%.6f"):format(logprob) or "-"
      io.write(i, "\t", ids[i], "\t", shown, "\t", json.encode(model:token(ids[i])), "\n")
    end
    local function report(failure)
      local perplexity = n > 0 and math.exp(-sum / n) or json.null
      if opt.json then
        io.write(json.encode({tokens = #ids, scored = n, sum = sum, perplexity = perplexity,
          ids = json.list(ids), logprobs = logprobs, error = failure}, ORDER), "\n")
      else
        io.write(("%s%d tokens, %d scored, sum %.6f, perplexity %s\n"):format(
          failure and "partial: " or "", #ids, n, sum,
          n > 0 and ("%.6f"):format(perplexity) or "-"))
      end
    end
    opt.partial = report
    show(1)
    score(model, ids, overlap, function(i, logprob)
      sum, logprobs[i], n = sum + logprob, logprob, n + 1
      show(i, logprob)
    end)
    report()
  end,
}
