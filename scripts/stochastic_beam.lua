-- Stochastic beam search (Kool et al. 2019, "Stochastic beams and where to find them: the
-- Gumbel-top-k trick for sampling sequences without replacement", algorithm 1): k texts drawn
-- without replacement from what the chain leaves of the model's distribution. A beam has phi, the
-- log-probability of its ids, and g, the largest perturbed log-probability of all texts that begin
-- with them; those of its children are drawn on condition that the largest of them is g. The noise
-- of beam i at token n is that of stream i and position n: one beam is plain sampling.
local branches = require "llm.branches"

-- The perturbed log-probability `free` after a shift of its siblings' maximum from `most` to g:
-- −ln(e^−g − e^−most + e^−free), as appendix B.3 computes it.
local function condition(free, most, g)
  if free == most then return g end
  local v = g - free + math.log(1 - math.exp(free - most))
  return g - math.max(0, v) - math.log(1 + math.exp(-math.abs(v)))
end

-- Appends the children of a beam: its `ids` with their free perturbed log-probabilities, best
-- first, and log-probabilities, both relative to the beam's.
local function expand(children, beam, row, ids, free, logprobs)
  for i, id in ipairs(ids) do
    if free[i] == -math.huge then return end
    children[#children + 1] = {row = row, id = id, parent = beam, phi = beam.phi + logprobs[i],
      g = beam.phi + condition(free[i], free[1], beam.g - beam.phi)}
  end
end

-- What decode returns, likeliest first.
local function list(beams)
  local out = {}
  for i, beam in ipairs(beams) do
    out[i] = {ids = branches.new_ids(beam.seq), score = beam.phi}
  end
  table.sort(out, function(a, b) return a.score > b.score end)
  return out
end

return {
  about = "stochastic beam search: texts drawn without replacement",
  options = {beam = {default = 4, type = "integer", min = 1, help = "texts drawn"}},
  decode = function(model, prompt, opt)
    branches.check_rows(opt, opt.beam)
    local beams, live = {}, {{seq = llm.seq(prompt), phi = 0.0, g = 0.0}}
    local kvs, tokens, rng = {model:cache()}, {prompt}, llm.rng(opt.seed)
    function opt.partial() return list(beams) end
    for n = 1, opt.max_tokens do
      local seqs, rngs, children, parents = {}, {}, {}, {}
      for i, beam in ipairs(live) do seqs[i], rngs[i] = beam.seq, rng:fork(i):at(n) end
      local logprobs = opt.sampler.filter(model:forward(kvs, tokens), seqs):log_softmax()
      local free, ids = logprobs:gumbel(rngs):topk(opt.beam)
      local phis, all_ids = logprobs:gather(ids):lists(), ids:lists()
      free = free:lists()
      for _, beam in ipairs(beams) do children[#children + 1] = beam.is_over and beam or nil end
      for i, beam in ipairs(live) do expand(children, beam, i, all_ids[i], free[i], phis[i]) end
      table.sort(children, function(a, b) return a.g > b.g end)
      beams, live, tokens = table.move(children, 1, opt.beam, 1, {}), {}, {}
      for _, beam in ipairs(beams) do
        if not beam.is_over then
          beam.seq = beam.parent.seq:fork(beam.id)
          beam.is_over, beam.parent = n == opt.max_tokens or model:is_eog(beam.id), nil
        end
        if not beam.is_over then
          live[#live + 1], tokens[#tokens + 1], parents[#parents + 1] = beam, beam.id, beam.row
        end
      end
      if #live == 0 then return list(beams) end
      kvs = llm.reorder(kvs, parents)
    end
  end,
}
