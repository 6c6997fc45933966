-- Watermark: raises by delta the logits of a green list that the last `width` ids choose, so that a
-- text has more green ids than chance allows; scripts/watermark_detect.lua counts them with the
-- same key, gamma and width (Kirchenbauer et al. 2023, "A watermark for large language models",
-- algorithm 2). gamma: the part that is green, 0 to 1, default 0.25; delta: default 2; key: any
-- integer, default 15485863; width: 0 or more, default 1.
local check = require "llm.check"
local greenlist = require "llm.greenlist"

return function(opts)
  local gamma, delta = check.number(opts, "gamma", 0.25, 0, 1), check.number(opts, "delta", 2)
  local key, width = check.integer(opts, "key", 15485863), check.integer(opts, "width", 1, 0)
  return function(logits, seqs)
    local a, b, known = greenlist.contexts(key, seqs, width)
    local green = greenlist.test(greenlist.ids(logits.n_columns), a, b, gamma)
    return logits + green * known * delta
  end
end
