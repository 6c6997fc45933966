-- DoLa (Chuang et al. 2024, "DoLa: decoding by contrasting layers improves factuality in large
-- language models"): the log-probabilities of the last layer minus those of an earlier one, among
-- the ids whose probability is at least plausibility times that of the likeliest. The earlier layer
-- is chosen at each step: the one whose distribution is farthest from the last by Jensen–Shannon
-- divergence. Every layer is read through the final norm and head (the logit lens).

local FAR = 1e4 -- what is not plausible comes behind all that is: a chain may ban the latter

-- The layers to choose from, as transformers' generate takes them: every other one of the lower or
-- of the upper half (20 at most of either). The embedding, 0, is left out where there is another.
local function bucket(n_layers, which)
  local half = n_layers <= 40 and n_layers // 2 or n_layers - 20
  local low, layers = math.max(0, math.min(2, half - 1)), {}
  local first, last = half, n_layers - 1
  if which == "low" then first, last = low, math.max(low, math.min(half, 20) - 1) end
  for layer = first, last, 2 do layers[#layers + 1] = layer end
  return layers
end

-- Jensen–Shannon divergence of a row of logits and each of several, as a row: the entropy of the
-- mean of two distributions minus the mean of their entropies.
local function divergence(final, early)
  local mean = (early:softmax() + final:softmax()) / 2
  return (mean:log():entropy() - (early:entropy() + final:entropy()) / 2):t()
end

return {
  about = "DoLa: what the last layer knows and an earlier one does not",
  options = {
    bucket = {default = "high", choices = {"low", "high"}, help = "half to take layers from"},
    layers = {type = "list", of = "integer", help = "these layers instead (0: the embedding)"},
    plausibility = {default = 0.1, min = 0, max = 1, help = "1 is greedy"},
    sample = {default = false, help = "draw instead of taking the likeliest"},
  },
  decode = function(model, prompt, opt, emit)
    local layers = opt.layers or bucket(model.n_layers, opt.bucket)
    for _, layer in ipairs(layers) do
      if layer < 0 or layer >= model.n_layers then
        error(llm.error("input", ("layer %d is outside 0 … %d, those before the last"):format(layer,
          model.n_layers - 1)))
      end
    end
    if #layers == 0 then error(llm.error("input", "no layers to choose from")) end
    local kv, id = model:cache(), table.remove(prompt)
    if #prompt > 0 then model:forward(kv, prompt, {rows = 0}) end
    while true do
      local final, hidden = model:forward(kv, id, {hidden = layers})
      local states = hidden[layers[1]]
      for i = 2, #layers do states = states:cat(hidden[layers[i]]) end
      local early = model:logits(states)
      early = early:row(divergence(final, early):argmax():item())
      local plausible = final:min_p(opt.plausibility):gt(-math.huge)
      local last = final:log_softmax()
      local logits = (last - early:log_softmax()):where(plausible, last - FAR)
      id = opt.sample and opt.sampler(logits) or opt.sampler.filter(logits):argmax()
      if emit(id, {logits = final}) then return end
    end
  end,
}
