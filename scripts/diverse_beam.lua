-- Diverse beam search (Vijayakumar et al. 2018, "Diverse beam search for improved description of
-- scenes", algorithm 1), step for step as transformers' generate did it: the beams are shared out
-- to groups, and at each step a group pays for every token that the groups before it have just
-- taken. What was paid stays in the sums. One group is beam search.
local new_pool = require "llm.pool"

-- One step of a group whose beams have these rows of log-probabilities. Appends the tokens of its
-- next beams to `taken`; returns the row that each of those comes from, or nil if it is over.
local function step(model, opt, group, n, rows, taken)
  local width, old, parents = group.pool.width, group.seqs, {}
  if #taken > 0 then rows:add_at_(taken, -opt.diversity_penalty) end
  local scores, ids, at = (opt.sampler.filter(rows, old) + group.sums)
    :topk_joint(math.max(2, 1 + #model.eog) * width)
  scores, ids, at = scores:tolist(), ids:tolist(), at:tolist()
  group.seqs, group.sums = {}, {}
  for i, id in ipairs(ids) do
    local seq, ends = old[at[i]]:fork(id), model:is_eog(id)
    if i <= width and (ends or n == opt.max_tokens) then group.pool:add(seq, scores[i], n) end
    if not ends and #parents < width and scores[i] > -math.huge then
      parents[#parents + 1], taken[#taken + 1] = at[i], id
      group.seqs[#parents], group.sums[#parents] = seq, scores[i]
    end
  end
  return not group.pool:is_over(group.sums[1], n, group.seqs[1]) and parents or nil
end

return {
  about = "diverse beam search: groups of beams that avoid each other's tokens",
  options = {
    beam = {default = 4, type = "integer", min = 1, help = "texts kept, all groups together"},
    groups = {default = 2, type = "integer", min = 1, help = "a divisor of beam; 1 is beam search"},
    diversity_penalty = {default = 0.5, help = "for each beam before that took the token"},
    length_penalty = {default = 1.0, help = "a score is sum / length ^ this"},
    early_stopping = {default = false, choices = {false, true, "never"}, help = "once all ended"},
  },
  decode = function(model, prompt, opt)
    if opt.beam % opt.groups ~= 0 then
      error(llm.error("input", ("%d beams cannot be shared out to %d groups"):format(opt.beam,
        opt.groups)))
    end
    local kvs, pools, live, ones = {model:cache()}, {}, {}, {}
    for g = 1, opt.groups do
      pools[g], ones[g] = new_pool(opt, opt.beam // opt.groups), 1
      live[g] = {pool = pools[g], seqs = {llm.seq(prompt)}, sums = {0.0}}
    end
    local logits = model:forward(kvs[1], prompt):rows(ones)
    kvs = llm.reorder(kvs, ones)
    for n = 1, opt.max_tokens do
      local logprobs, first, taken, parents, tokens, going = logits:log_softmax(), 1, {}, {}, {}, {}
      for _, group in ipairs(live) do
        local n_rows, n_taken = #group.sums, #taken
        local stays = step(model, opt, group, n, logprobs:narrow(1, first, n_rows), taken)
        for i, row in ipairs(stays or {}) do
          parents[#parents + 1], tokens[#tokens + 1] = first + row - 1, taken[n_taken + i]
        end
        going[#going + 1], first = stays and group or nil, first + n_rows
      end
      if #going == 0 then return pools[1]:results(table.unpack(pools, 2)) end
      live, kvs = going, llm.reorder(kvs, parents)
      logits = model:forward(kvs, tokens)
    end
  end,
}
