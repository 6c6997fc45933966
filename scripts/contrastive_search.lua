-- Contrastive search (Su et al. 2022, "A contrastive framework for neural text generation",
-- equation 5): of the k likeliest ids v the one with the largest (1 − alpha) · p(v) − alpha · s(v),
-- where s(v) is the largest cosine between the hidden state of v and that of any token before it.
-- Hidden states are those of the last layer, before the final norm.
return {
  about = "contrastive search: likely ids whose meaning is not yet in the text",
  options = {
    k = {default = 4, min = 1, help = "candidates of a step"},
    alpha = {default = 0.6, min = 0, max = 1, help = "weight of the penalty; 0 is greedy"},
  },
  decode = function(model, prompt, opt, emit)
    local kv, top = model:cache(), model.n_layers
    local logits, hidden, seen -- seen: a column for each token, of length 1
    for first = 1, #prompt, opt.max_rows do
      local part = table.move(prompt, first, math.min(first + opt.max_rows - 1, #prompt), 1, {})
      logits, hidden = model:forward(kv, part, {hidden = {top}})
      local columns = hidden[top]:normalize():t()
      seen = seen and seen:cat(columns, 2) or columns
    end
    while true do
      local filtered = opt.sampler.filter(logits)
      local scores, ids = filtered:topk(opt.k)
      local best, row = 1, logits
      if #kv < model.ctx then
        local p, kvs = filtered:softmax():gather(ids), {kv}
        for i = 2, #ids do kvs[i] = kv:fork() end
        logits, hidden = model:forward(kvs, ids:t(), {hidden = {top}})
        local states = hidden[top]:normalize()
        local penalty = states:matmul(seen):max():t()
        local value = (p * (1 - opt.alpha) - penalty * opt.alpha)
          :where(scores:gt(-math.huge), -math.huge)
        best = value:argmax():item()
        kv, logits = llm.reorder(kvs, {best})[1], logits:row(best)
        seen = seen:cat(states:row(best):t(), 2)
      end
      if emit(ids[best], {logits = row}) then return end
    end
  end,
}
