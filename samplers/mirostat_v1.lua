-- Mirostat: estimates from the m likeliest how steeply probabilities fall with their rank (Zipf's
-- exponent s), keeps as many ids as give a surprise of mu bits, and moves mu so that the surprise
-- of what is drawn comes to tau (Basu et al. 2021, "Mirostat: a neural text decoding algorithm that
-- directly controls perplexity", algorithm 1). tau: bits, above 0, default 5; eta: how fast mu
-- moves, default 0.1; m: at least 2, default 100; mu: at the start, default 2 tau; n_vocab: number
-- of ids, default 0, that of the logits.
local check = require "llm.check"
local feedback = require "llm.feedback"

return function(opts)
  local tau, eta = check.number(opts, "tau", 5, 1e-6), check.number(opts, "eta", 0.1, 0)
  local m, n_vocab = check.integer(opts, "m", 100, 2), check.integer(opts, "n_vocab", 0, 0)
  local function update(mu, bits) return mu - eta * (bits - tau) end
  local function cut(logits, mu)
    local top, V = logits:topk(m), n_vocab > 0 and n_vocab or logits.n_columns
    local t, k = {}, {}
    for i = 1, top.n_columns - 1 do t[i] = math.log((i + 1) / i) end
    for r, x in ipairs(top:lists()) do
      local tb, tt = 0, 0
      for i = 1, #t do
        if x[i + 1] == -math.huge then break end
        tb, tt = tb + t[i] * (x[i] - x[i + 1]), tt + t[i] * t[i]
      end
      local s = tb / tt
      local size = ((s - 1) * 2 ^ mu[r] / (1 - V ^ (1 - s))) ^ (1 / s)
      k[r] = size >= 1 and math.floor(math.min(size, V)) or 1
    end
    return logits:top_k(k)
  end
  return feedback("mirostat_v1", check.number(opts, "mu", 2 * tau), update, cut)
end
