return {
  about  = "take the most likely token each time",
  decode = function(model, prompt, opt, emit)
    local kv = model:cache()
    local logits = model:forward(kv, prompt)
    while true do
      local id = opt.sampler.filter(logits):argmax()
      if emit(id) then return end
      logits = model:forward(kv, id)
    end
  end,
}
