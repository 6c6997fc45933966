-- Classifier-free guidance (Sanchez et al. 2023, "Stay on topic with classifier-free guidance",
-- equation 7), with the meaning of transformers' guidance_scale: from u, the log-probabilities
-- after the negative prompt, towards c, those after the prompt, and beyond: u + scale · (c − u).
-- Without a negative prompt u follows the last token of the prompt alone.
return {
  about = "classifier-free guidance: towards the prompt, away from a negative one",
  options = {
    guidance_scale = {default = 1.5, help = "1 is off; below 1 towards the negative prompt"},
    negative_prompt = {type = "string", help = "what to move away from"},
    negative_prompt_ids = {type = "list", of = "integer", help = "the same as token ids"},
    sample = {default = false, help = "draw instead of taking the likeliest"},
  },
  decode = function(model, prompt, opt, emit)
    local negative = opt.negative_prompt_ids
      or opt.negative_prompt and model:encode(opt.negative_prompt) or {prompt[#prompt]}
    if #negative == 0 then negative[1] = model.bos end
    if #negative == 0 then
      error(llm.error("input", "the negative prompt is empty and the model has no BOS token"))
    end
    local kvs, ids = {model:cache(), model:cache()}, {prompt, negative}
    while true do
      local logits = model:forward(kvs, ids)
      local own, both = logits:row(1), logits:log_softmax()
      local c, u = both:row(1), both:row(2)
      local guided = opt.guidance_scale == 1 and own or u + (c - u) * opt.guidance_scale
      local id = opt.sample and opt.sampler(guided) or opt.sampler.filter(guided):argmax()
      if emit(id, {logits = own}) or math.max(#kvs[1], #kvs[2]) == model.ctx then return end
      ids = {id, id}
    end
  end,
}
