-- Mirostat 2: drops what surprises more than mu bits, and moves mu so that the surprise of what is
-- drawn comes to tau (Basu et al. 2021, "Mirostat: a neural text decoding algorithm that directly
-- controls perplexity", its simpler version). tau: bits, above 0, default 5; eta: how fast mu
-- moves, default 0.1; mu: at the start, default 2 tau.
local llm = require "llm"
local check = require "llm.check"
local feedback = require "llm.feedback"

return function(opts)
  local tau, eta = check.number(opts, "tau", 5, 1e-6), check.number(opts, "eta", 0.1, 0)
  local function update(mu, bits) return mu - eta * (bits - tau) end
  local function cut(logits, mu)
    return logits:cut_below(logits:logsumexp() - llm.tensor(mu, "f32") * math.log(2))
  end
  return feedback("mirostat_v2", check.number(opts, "mu", 2 * tau), update, cut)
end
