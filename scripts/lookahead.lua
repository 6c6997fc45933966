-- Lookahead decoding (Fu et al. 2024, "Break the sequential dependency of LLM inference using
-- lookahead decoding"). Each pass over a tree of guesses does two things at once. Its window runs
-- Jacobi iterations on the `window` next places, ngram − 1 iterations deep, and finds an n-gram at
-- each place; and n-grams found before that begin with the last token are verified. It pays where
-- a pass over many rows takes little longer than over one; the wider the device, the wider the
-- window. The text is that of `sample`, token for token; without a sampler chain that of `greedy`.
local speculation = require "llm.speculation"

-- Puts an n-gram first in the list of its first id, where it is once; at most n are kept.
local function note(found, ngram, n)
  local first = table.remove(ngram, 1)
  local list, text = found[first] or {}, table.concat(ngram, " ")
  for i, old in ipairs(list) do
    if table.concat(old, " ") == text then table.remove(list, i) end
  end
  table.insert(list, 1, ngram)
  list[n + 1], found[first] = nil, list
end

return {
  about = "sample (greedy without a chain), with n-grams of Jacobi iterations as drafts",
  options = {
    window = {default = 3, min = 1, help = "places that are iterated at once"},
    ngram = {default = 3, min = 2, help = "length of the n-grams"},
    guesses = {default = 3, min = 0, help = "n-grams verified in a pass, the latest found"},
  },
  decode = function(model, prompt, opt, emit)
    local kv, seq, depth = model:cache(), llm.seq(prompt), opt.ngram - 1
    local n_nodes = 1 + depth * (opt.window + opt.guesses)
    local room = math.min(opt.max_rows, model.piece)
    if n_nodes > room then
      local message = "trees of %d guesses asked, a pass takes %d"
      error(llm.error("input", message:format(n_nodes, room)))
    end
    local found, window = {}, {} -- n-grams by their first id; window[l][j]: iteration l at place j
    for l = 1, depth do
      window[l] = {}
      for j = 1, opt.window do window[l][j] = prompt[math.random(#prompt)] end
    end
    local function greedy(logits, seqs) return opt.sampler.filter(logits, seqs):argmax() end
    local draw = opt.sampler.is_empty and greedy or opt.sampler
    if #prompt > 1 then model:forward(kv, table.move(prompt, 1, #prompt - 1, 1, {}), {rows = 0}) end
    while true do
      local tree, has_room = speculation.tree(seq), n_nodes <= model.ctx - #kv
      for _, guess in ipairs(has_room and found[seq.ids[#seq]] or {}) do
        local node = 1
        for _, id in ipairs(guess) do node = tree:add(node, id) end
      end
      local first, ends = 1, {} -- places of iteration 1 are a chain, later ones hang below each
      for j = 1, has_room and opt.window or 0 do
        first = tree:add(first, window[1][j])
        ends[j] = first
        for l = 2, depth do ends[j] = tree:add(ends[j], window[l][j]) end
      end
      local is_over, rows = speculation.verify_tree(model, kv, seq, tree, draw, emit)
      if is_over then return end
      if has_room then
        window[depth + 1] = rows:rows(ends):argmax():tolist()
        for j = 1, opt.window do
          local ngram = {}
          for l = 1, depth + 1 do ngram[l] = window[l][j] end
          note(found, ngram, opt.guesses)
        end
        table.remove(window, 1)
      end
    end
  end,
}
