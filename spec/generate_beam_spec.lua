-- Beam searches of the reference, plain and with processors.
local h = require "spec.helper"
local each_case = require "spec.generate"

local function check(case, result)
  assert.equal(#case.sequences, #result.outputs)
  for i, output in ipairs(result.outputs) do
    assert.same(case.sequences[i], output.ids)
    local score = case.sequences_scores[i]
    assert(math.abs(output.score - score) <= 1e-3 * math.abs(score))
  end
end

for name in pairs {smollm2 = true, gemma3 = true} do
  describe(name, function()
    local with = h.with(h.real_path(name), it, pending)

    with("beam search gives the reference sequences and scores", function()
      each_case(name, function(case) return case.kind == "beam" end, check)
    end)
  end)
end
