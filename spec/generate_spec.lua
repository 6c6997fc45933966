-- Greedy generations of the reference, plain, with processors, with guidance.
local h = require "spec.helper"
local each_case = require "spec.generate"

local function check(case, result)
  assert.same(case.ids, result.ids)
  assert.equal(case.finish, result.finish)
end

for name in pairs {smollm2 = true, gemma3 = true} do
  describe(name, function()
    local with = h.with(h.real_path(name), it, pending)

    with("greedy gives the reference ids", function()
      each_case(name, function(case)
        return case.kind == "greedy" and next(case.options) == nil
      end, check)
    end)

    with("greedy with processors gives the reference ids", function()
      each_case(name, function(case)
        return case.kind == "greedy" and next(case.options) and not case.options.guidance_scale
      end, check)
    end)

    with("guidance gives the reference ids", function()
      each_case(name, function(case) return case.options.guidance_scale end, check)
    end)
  end)
end
