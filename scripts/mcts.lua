-- Monte Carlo tree search over tokens (Leblond et al. 2021, "Machine translation decoding beyond
-- beam search"; Zhang et al. 2023, "Planning with large language models for code generation", whose
-- rollouts by the model take the place of a value network). A simulation walks down the tree by the
-- PUCT rule (Silver et al. 2017, "Mastering the game of Go without human knowledge"), adds the k
-- likeliest tokens to the leaf, lengthens its text by a rollout, and credits the reward to all
-- nodes on the way. After so many the token visited most often is emitted, and its node becomes the
-- root. Rewards are scaled to 0 … 1 by the least and the greatest so far (Schrittwieser et al.
-- 2020, "Mastering Atari, Go, chess and shogi by planning with a learned model", appendix B).
local branches = require "llm.branches"
local new_reward = require "llm.reward"

-- The child with the greatest scaled mean reward + bonus; the likelier one of equals.
local function select_child(node, c_puct, low, high)
  local best, most = nil, -math.huge
  for _, child in ipairs(node.children) do
    local mean = child.visits > 0 and high > low
      and (child.total / child.visits - low) / (high - low) or 0
    local score = mean + c_puct * child.prior * math.sqrt(node.visits) / (1 + child.visits)
    if score > most then best, most = child, score end
  end
  return best
end

return {
  about = "Monte Carlo tree search: look ahead before each token",
  options = {
    simulations = {default = 16, min = 1, help = "walks down the tree for each token"},
    k = {default = 4, min = 1, help = "likeliest tokens that a node goes on with"},
    c_puct = {default = 1.0, min = 0, help = "weight of the model's opinion against the rewards"},
    rollout = {default = 16, min = 1, help = "tokens of a rollout"},
    sample = {default = false, help = "draw rollouts instead of taking the likeliest tokens"},
    reward = {type = "file", help = "Lua file that returns function(ids, text), a text's worth; "
      .. "default: the mean log-probability"},
  },
  decode = function(model, prompt, opt, emit)
    local reward, draw, n_walks = new_reward(opt.reward, opt.seed), branches.drawer(opt), 0
    local branch, root = branches.new(model, prompt, opt), {visits = 0, total = 0}
    local low, high = math.huge, -math.huge
    local function simulate()
      n_walks = n_walks + 1
      local node, text = root, branch:fork(n_walks)
      while node.children do
        node = select_child(node, opt.c_puct, low, high)
        text:push(node.id, node.logprob)
      end
      if not text.finish then
        local lists, logits = branches.expand({text}, opt, opt.k)
        node.children = lists[1]
        for _, child in ipairs(node.children) do
          child.parent, child.visits, child.total = node, 0, 0
        end
        local last = text.n + opt.rollout
        branches.grow({text}, draw, function() return text.n >= last end, logits)
      end
      text:close()
      local value = reward(text)
      low, high = math.min(low, value), math.max(high, value)
      while node do
        node.visits, node.total, node = node.visits + 1, node.total + value, node.parent
      end
    end
    while true do
      for _ = 1, opt.simulations do simulate() end
      local logits = branches.forward {branch}
      local best = branches.sort(root.children, function(child) return child.visits end)[1]
      if emit(best.id, {logits = logits}) then return end
      branch:push(best.id, best.logprob)
      root, best.parent = best, nil
    end
  end,
}
