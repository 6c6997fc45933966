-- Draws from the model's distribution, as the filters of the chain leave it (--sampler, or
-- --temperature, --top-k, --top-p, --min-p and the penalties; without any: as it is).
return {
  about = "draw each token from the distribution that the sampler chain leaves",
  decode = function(model, prompt, opt, emit)
    local kv = model:cache()
    local logits = model:forward(kv, prompt)
    while true do
      local id = opt.sampler(logits)
      if emit(id) then return end
      logits = model:forward(kv, id)
    end
  end,
}
