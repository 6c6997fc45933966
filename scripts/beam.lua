-- Beam search, step for step as transformers' generate does it (Wolf et al. 2020; the score with
-- its length penalty is that of Wu et al. 2016, section 7, without the constant 5).
local new_pool = require "llm.pool"
return {
  about = "beam search: keep the B best texts side by side",
  options = {
    beam = {default = 4, type = "integer", min = 1, help = "texts kept side by side"},
    length_penalty = {default = 1.0, help = "a score is sum / length ^ this"},
    early_stopping = {default = false, choices = {false, true, "never"}, help = "once B ended"},
  },
  decode = function(model, prompt, opt)
    local pool, n_candidates = new_pool(opt), math.max(2, 1 + #model.eog) * opt.beam
    local kvs, seqs, sums, tokens = {model:cache()}, {llm.seq(prompt)}, {0.0}, {prompt}
    for n = 1, opt.max_tokens do
      local logprobs = model:forward(kvs, tokens):log_softmax()
      local scores, ids, rows = (opt.sampler.filter(logprobs, seqs) + sums):topk_joint(n_candidates)
      scores, ids, rows = scores:tolist(), ids:tolist(), rows:tolist()
      local parents, old = {}, seqs
      tokens, seqs, sums = {}, {}, {} -- of the beams that live on
      for i, id in ipairs(ids) do
        if n == opt.max_tokens or model:is_eog(id) then
          if i <= opt.beam then pool:add(old[rows[i]]:fork(id), scores[i], n) end
        elseif #sums < opt.beam and scores[i] > -math.huge then
          parents[#parents + 1], tokens[#tokens + 1], sums[#sums + 1] = rows[i], id, scores[i]
          seqs[#seqs + 1] = old[rows[i]]:fork(id)
        end
      end
      if pool:is_over(sums[1], n, seqs[1]) then return pool:results() end
      kvs = llm.reorder(kvs, parents)
    end
  end,
}
