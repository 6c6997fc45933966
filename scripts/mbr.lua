-- Minimum Bayes risk decoding (Eikema and Aziz 2022, "Sampling-based approximations to minimum
-- Bayes risk decoding for neural machine translation"): draws several texts, which are candidates
-- and references at once. A candidate's score is its expected utility, the mean of its likeness to
-- all texts drawn, itself included.
local branches = require "llm.branches"
local metrics = require "llm.metrics"

-- By name: what is made of a text once, and the utility of a candidate against a reference.
local prepare = {chrf = metrics.profile, edit = metrics.characters, exact = tostring}
local utilities = {
  chrf = metrics.chrf,
  edit = metrics.similarity,
  exact = function(a, b) return a == b and 1 or 0 end,
}

return {
  about = "draw several texts, return the one most like all others first",
  options = {
    samples = {default = 8, min = 1, help = "texts drawn"},
    utility = {default = "chrf", choices = {"chrf", "edit", "exact"}, help = "likeness: chrF, "
      .. "1 - edit distance / length, or equality"},
  },
  decode = function(model, prompt, opt)
    local utility = utilities[opt.utility]
    return branches.samples(model, prompt, opt, opt.samples, function(list)
      local texts = {}
      for i, branch in ipairs(list) do texts[branch] = prepare[opt.utility](branch.text) end
      return branches.results(list, function(branch)
        local sum = 0
        for _, other in ipairs(list) do sum = sum + utility(texts[branch], texts[other]) end
        return sum / #list
      end)
    end)
  end,
}
