-- Prompt lookup decoding (Saxena 2023, "Prompt lookup decoding"): what followed the last tokens
-- when they stood in the text before is the draft, and one pass verifies it. The longest match
-- counts, and of those the latest. The text is that of `sample`, token for token.
local speculation = require "llm.speculation"
return {
  about = "sample, with drafts copied from earlier in the text",
  options = {
    ngram = {default = 3, min = 1, help = "look for the last n tokens, then for fewer"},
    drafts = {default = 10, min = 0, help = "most tokens copied for a pass"},
  },
  decode = function(model, prompt, opt, emit)
    local kv, seq, places, n_noted = model:cache(), llm.seq(prompt), {}, 0
    -- The n ids up to place i as one key.
    local function key(i, n) return table.concat(seq.ids, " ", i - n + 1, i) end
    -- Where the last ids stood before: the place of the last of them.
    local function find()
      for i = n_noted + 1, #seq - 1 do
        for n = 1, math.min(opt.ngram, i) do places[key(i, n)] = i end
      end
      n_noted = #seq - 1
      for n = math.min(opt.ngram, #seq), 1, -1 do
        local place = places[key(#seq, n)]
        if place then return place end
      end
    end
    local n, is_over = opt.drafts, false
    while not is_over do
      local ahead, before, place = seq:fork(), #seq, find()
      for i = 1, place and speculation.room(opt, seq, n) or 0 do
        ahead:push(ahead.ids[place + i]) -- may run on into the draft itself
      end
      is_over = speculation.verify(model, kv, seq, ahead, opt.sampler, emit)
      n = speculation.pace(n, #ahead - before, #seq - before - 1, opt.drafts)
    end
  end,
}
