-- Best of n: draws n texts and puts first the one that the model itself finds likeliest, by the
-- mean log-probability of its tokens or by their sum (Adiwardana et al. 2020, "Towards a human-like
-- open-domain chatbot", section 3.4: sample-and-rank). One text of one is that of `sample`.
local branches = require "llm.branches"
return {
  about = "draw several texts, return the likeliest first",
  options = {
    samples = {default = 4, min = 1, help = "texts drawn"},
    rank = {default = "mean", choices = {"mean", "sum"}, help = "of the log-probabilities"},
  },
  decode = function(model, prompt, opt)
    return branches.samples(model, prompt, opt, opt.samples, function(list)
      return branches.results(list, function(branch)
        return opt.rank == "mean" and branch:mean() or branch.sum
      end)
    end)
  end,
}
