-- Self-speculation: the first layers of the model draft, all of them verify (Zhang et al. 2024,
-- "Draft & verify: lossless large language model acceleration via self-speculative decoding";
-- Elhoushi et al. 2024, "LayerSkip: enabling early exit inference and self-speculative decoding").
-- Drafting ends early where the draft is unsure of its token. The text is that of `sample`, token
-- for token.
local speculation = require "llm.speculation"
return {
  about = "sample, with drafts of the model's own first layers",
  options = {
    exit = {type = "integer", min = 1, help = "draft with so many layers; default: half of them"},
    drafts = {default = 4, min = 0, help = "most tokens drafted for a pass of all layers"},
    confidence = {default = 0.5, min = 0, max = 1,
      help = "no more drafts after one of a lower probability"},
  },
  decode = function(model, prompt, opt, emit)
    local exit = opt.exit or math.max(1, model.n_layers // 2)
    if exit > model.n_layers then
      error(llm.error("input", ("--exit %d: the model has %d layers"):format(exit, model.n_layers)))
    end
    local kv, seq = model:cache(), llm.seq(prompt)
    local n, is_over = opt.drafts, speculation.verify(model, kv, seq, seq, opt.sampler, emit)
    while not is_over do
      local ahead, before = seq:fork(), #seq
      speculation.rewind(kv, before - 1)
      for _ = 1, speculation.room(opt, seq, n) do
        local logits = model:forward(kv, speculation.rest(kv, ahead), {exit = exit})
        local id = opt.sampler(logits, {ahead}):item()
        ahead:push(id)
        if logits:softmax()[id] < opt.confidence then break end
      end
      is_over = speculation.verify(model, kv, seq, ahead, opt.sampler, emit)
      n = speculation.pace(n, #ahead - before, #seq - before - 1, opt.drafts)
    end
  end,
}
