-- Branching where the model is unsure (Li et al. 2025, "Entropy-aware branching for improved
-- mathematical reasoning"; branches are ranked here by the model's own log-probabilities instead of
-- by a second model): a branch goes on with its likeliest token, and where the entropy of the next
-- token, as the chain leaves it, is above the threshold, with each of the likeliest few. Of all
-- branches, those that are over too, the best by mean log-probability are kept.
local branches = require "llm.branches"

return {
  about = "greedy, forking where the entropy of the next token is high",
  options = {
    threshold = {default = 2.0, help = "fork above this entropy, in nats"},
    fan = {default = 2, min = 1, help = "tokens that a fork goes on with"},
    branches = {default = 4, min = 1, help = "texts kept side by side"},
  },
  decode = function(model, prompt, opt)
    branches.check_rows(opt, opt.branches)
    local kept = {branches.new(model, prompt, opt)}
    local function results()
      return branches.results(kept, function(branch) return branch:mean() end)
    end
    opt.partial = results
    while true do
      local live, candidates = {}, {}
      for _, branch in ipairs(kept) do
        if branch.finish then
          table.insert(candidates, {branch = branch, mean = branch:mean()})
        else
          table.insert(live, branch)
        end
      end
      if #live == 0 then return results() end
      for i, tokens in ipairs(branches.expand(live, opt, opt.fan)) do
        local parent = live[i]
        for c = 1, tokens.entropy > opt.threshold and #tokens or 1 do
          local mean = (parent.sum + tokens[c].logprob) / (parent.n + 1)
          table.insert(candidates, {parent = parent, token = tokens[c], mean = mean})
        end
      end
      branches.sort(candidates, function(candidate) return candidate.mean end)
      kept = {}
      for i = 1, math.min(opt.branches, #candidates) do
        local c = candidates[i]
        kept[i] = c.branch or c.parent:fork():push(c.token.id, c.token.logprob)
        if kept[i].finish then kept[i]:close() end
      end
      for _, branch in ipairs(live) do branch:close() end
    end
  end,
}
