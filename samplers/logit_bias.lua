-- Adds to the logits of what should come more or less often (OpenAI API reference, "logit_bias").
-- bias: a list of {what, x}; what: an id, a list of ids, or a text, which counts where its last
-- token would follow the others; x may be −inf. Its text form: bias=[["yes", 5], [17, "-inf"]].
local check = require "llm.check"
local phrases = require "llm.phrases"
local sequence_bias = require "samplers.sequence_bias"

return function(opts, model)
  local entries = check.list(opts, "bias", nil, "a list of [text, id or ids, x]")
  local bias = {}
  for i, entry in ipairs(entries) do
    local what = type(entry) == "table" and entry[1]
    local ids = type(what) == "string" and phrases.ids(model, what) or what
    bias[i] = ids and {ids, entry[2]} or entry
  end
  return sequence_bias {bias = bias}
end
