-- Context-aware decoding (Shi et al. 2024, "Trusting your evidence: hallucinate less with
-- context-aware decoding", equation 2): what the context changes counts more. With c the logits
-- after context and prompt, u those after the prompt alone: (1 + alpha) · c − alpha · u.
return {
  about = "context-aware decoding: a context weighs more than what the model knows",
  options = {
    context = {default = "", help = "text that stands before the prompt"},
    alpha = {default = 0.5, min = 0, help = "0: context and prompt as one prompt"},
    sample = {default = false, help = "draw instead of taking the likeliest"},
  },
  decode = function(model, prompt, opt, emit)
    local n_bos = prompt[1] == model.bos and 1 or 0
    local informed = table.move(prompt, 1, n_bos, 1, {})
    local context = model:encode(opt.context, {add_special = false})
    table.move(context, 1, #context, #informed + 1, informed)
    table.move(prompt, n_bos + 1, #prompt, #informed + 1, informed)
    if #informed > model.ctx then
      error(llm.error("input", ("context and prompt too long: %d tokens, the context holds %d")
        :format(#informed, model.ctx)))
    end
    local kvs, ids = {model:cache(), model:cache()}, {informed, prompt}
    while true do
      local both = model:forward(kvs, ids)
      local c, u = both:row(1), both:row(2)
      local logits = c + (c - u) * opt.alpha
      local id = opt.sample and opt.sampler(logits) or opt.sampler.filter(logits):argmax()
      if emit(id, {logits = c}) or #kvs[1] == model.ctx then return end
      ids = {id, id}
    end
  end,
}
