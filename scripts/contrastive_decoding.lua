-- Contrastive decoding (Li et al. 2023, "Contrastive decoding: open-ended text generation as
-- optimization"), with the strength of O'Brien & Lewis 2023, "Contrastive decoding improves
-- reasoning in large language models", equation 2: (1 + strength) · e − strength · a, with e the
-- logits of the model and a those of a weaker one, the amateur, among the ids whose probability is
-- at least plausibility times that of the likeliest.

local FAR = 1e4 -- what is not plausible comes behind all that is: a chain may ban the latter

return {
  about = "contrastive decoding: what the model knows and a weaker one does not",
  options = {
    amateur = {type = "model", help = "the weaker model, with the same vocabulary"},
    strength = {default = 0.5, min = 0, help = "0 is greedy"},
    plausibility = {default = 0.1, min = 0, max = 1, help = "1 is greedy"},
    sample = {default = false, help = "draw instead of taking the likeliest"},
  },
  decode = function(model, prompt, opt, emit)
    local amateur = opt.amateur or error(llm.error("input", "no amateur: give --amateur FILE"))
    if amateur.vocab_size ~= model.vocab_size then
      error(llm.error("input", ("the amateur's vocabulary has %d tokens, the model's %d"):format(
        amateur.vocab_size, model.vocab_size)))
    elseif amateur:decode(prompt) ~= model:decode(prompt) then
      error(llm.error("input", ("the amateur has other tokens: the prompt is %q, not %q"):format(
        amateur:decode(prompt), model:decode(prompt))))
    end
    local kv, weak_kv, ids = model:cache(), amateur:cache(), prompt
    while true do
      local e, a = model:forward(kv, ids), amateur:forward(weak_kv, ids)
      local plausible = e:min_p(opt.plausibility):gt(-math.huge)
      local logits = (e + (e - a) * opt.strength):where(plausible, e - FAR)
      local id = opt.sample and opt.sampler(logits) or opt.sampler.filter(logits):argmax()
      if emit(id, {logits = e}) then return end
      ids = id
    end
  end,
}
