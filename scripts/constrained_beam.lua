-- Beam search in which given words must appear: grid beam search (Hokamp & Liu 2017, "Lexically
-- constrained decoding for sequence generation using grid beam search"), with the places dealt out
-- to banks as by Post & Vilar 2018, "Fast lexically constrained decoding with dynamic beam
-- allocation for neural machine translation". A bank is all candidates with as many tokens of the
-- words still to come; each beam goes on with its likeliest ids and with every id of the words.
-- Only a beam with all words may end. Without words it is beam search.
local new_pool = require "llm.pool"
local start_words = require "llm.words"

local function is_likelier(a, b) return a.sum > b.sum or a.sum == b.sum and a.at < b.at end

-- Places go to the first of each bank, the one with the least to come before, then the second …
local function is_dealt_first(a, b)
  return a.rank < b.rank or a.rank == b.rank and a.words.left < b.words.left
end

return {
  about = "beam search in which given words must appear",
  options = {
    words = {default = {}, type = "list", help = "words that must appear, separated by commas"},
    beam = {default = 8, type = "integer", min = 1, help = "texts kept side by side"},
    length_penalty = {default = 1.0, help = "a score is sum / length ^ this"},
    early_stopping = {default = false, choices = {false, true, "never"}, help = "once B ended"},
  },
  decode = function(model, prompt, opt)
    local pool, n_candidates = new_pool(opt), math.max(2, 1 + #model.eog) * opt.beam
    local words, word_ids = start_words(model, opt.words, opt.max_tokens)
    local kvs, tokens, live = {model:cache()}, {prompt}, {{words = words}}
    local seqs, sums = {llm.seq(prompt)}, {0.0}
    for n = 1, opt.max_tokens do
      local plain, candidates, ranks = model:forward(kvs, tokens):log_softmax(), {}, {}
      local logprobs = opt.sampler.filter(plain, seqs)
      local scores, ids = (logprobs + sums):topk(n_candidates)
      local uncut = logprobs:where(logprobs:gt(-math.huge), plain) + sums -- of the words
      scores, ids = scores:lists(), ids:lists()
      uncut = #word_ids > 0 and uncut:gather(word_ids):lists() or scores
      for row, beam in ipairs(live) do
        local seen = {}
        table.move(uncut[row], 1, #word_ids, #scores[row] + 1, scores[row])
        table.move(word_ids, 1, #word_ids, #ids[row] + 1, ids[row])
        for i, id in ipairs(ids[row]) do
          local ends, sum = model:is_eog(id), scores[row][i]
          local after = beam.words:after(id, ends and 0 or opt.max_tokens - n)
          if after and sum > -math.huge and not seen[id] then
            seen[id], candidates[#candidates + 1] = true, {at = #candidates, row = row, id = id,
              sum = sum, words = after, ends = ends or n == opt.max_tokens}
          end
        end
      end
      table.sort(candidates, is_likelier)
      live = {}
      for _, c in ipairs(candidates) do
        c.rank = (ranks[c.words.left] or 0) + 1
        ranks[c.words.left] = c.rank
        if not c.ends then live[#live + 1] = c end
        if c.ends and c.rank <= opt.beam then pool:add(seqs[c.row]:fork(c.id), c.sum, n) end
      end
      table.sort(live, is_dealt_first)
      local old, parents, best = seqs, {}, 1
      live, seqs, sums, tokens = table.move(live, 1, opt.beam, 1, {}), {}, {}, {}
      for i, beam in ipairs(live) do
        seqs[i], sums[i], tokens[i] = old[beam.row]:fork(beam.id), beam.sum, beam.id
        parents[i], best = beam.row, beam.sum > sums[best] and i or best
      end
      if pool:is_over(sums[best], n, seqs[best]) then return pool:results() end
      kvs = llm.reorder(kvs, parents)
    end
  end,
}
