-- Speculative decoding (Leviathan, Kalman and Matias 2023, "Fast inference from transformers via
-- speculative decoding"; Chen et al. 2023, "Accelerating large language model decoding with
-- speculative sampling"): a small model drafts, the large one verifies all drafts in one pass. In
-- place of their rejection sampling both models draw with the same Gumbel noise, and a draft is
-- accepted if the draws agree (Daliri, Musco and Suresh 2024, "Coupling without communication and
-- drafter-invariant speculative decoding"). The text is that of `sample`, token for token.
local speculation = require "llm.speculation"
return {
  about = "sample, with drafts of a small model that the large one verifies",
  options = {
    draft = {type = "model", help = "the small model, of the same vocabulary"},
    drafts = {default = 4, min = 0, help = "most tokens drafted for a pass of the large one"},
  },
  decode = function(model, prompt, opt, emit)
    local small = opt.draft or error(llm.error("input", "no draft model: give --draft"))
    if small.vocab_size ~= model.vocab_size then
      error(llm.error("input", ("the draft model has a vocabulary of %d, the model of %d")
        :format(small.vocab_size, model.vocab_size)))
    end
    local kv, small_kv, seq = model:cache(), small:cache(), llm.seq(prompt)
    local n, is_over = opt.drafts, false
    while not is_over do
      local ahead, before = seq:fork(), #seq
      speculation.rewind(small_kv, before - 1)
      for _ = 1, math.min(small.ctx - before + 1, speculation.room(opt, seq, n)) do
        local logits = small:forward(small_kv, speculation.rest(small_kv, ahead))
        ahead:push(opt.sampler(logits, {ahead}):item())
      end
      is_over = speculation.verify(model, kv, seq, ahead, opt.sampler, emit)
      n = speculation.pace(n, #ahead - before, #seq - before - 1, opt.drafts)
    end
  end,
}
