-- The golden generations, through the program as a user runs it.
local h = require "spec.helper"
local json = require "dkjson"

local function generate(path, case, script, options)
  local ids = table.concat(case.prompt_ids, ",")
  local arguments = "%s -m %s --device ref --json --quiet -n %d --prompt-ids %s %s"
  arguments = arguments:format(script, h.quote(path), case.max_new_tokens, ids, options)
  local out, err, code = h.run(arguments)
  assert.equal(0, code, err)
  return assert(json.decode(out, 1, json.null), out)
end

local function only(options, allowed)
  for key in pairs(options) do
    if key ~= allowed then return false end
  end
  return true
end

for name in pairs {smollm2 = true, gemma3 = true} do
  describe(name, function()
    local path = h.real_path(name)
    local with = h.with(path, it, pending)

    with("greedy gives the reference ids", function()
      for case in h.lines("reference/generate/" .. name .. ".jsonl") do
        if case.kind == "greedy" and only(case.options, "repetition_penalty") then
          local penalty = case.options.repetition_penalty
          local options = penalty and "--repetition-penalty " .. penalty or ""
          local result = generate(path, case, "scripts/greedy.lua", options)
          assert.same(case.ids, result.ids)
          assert.equal(case.finish, result.finish)
        end
      end
    end)

    with("beam search gives the reference sequences and scores", function()
      for case in h.lines("reference/generate/" .. name .. ".jsonl") do
        if case.kind == "beam" and only(case.options, nil) then
          local options = ("--beam %d --length-penalty %s --early-stopping %s"):format(
            case.num_beams, case.length_penalty, tostring(case.early_stopping))
          local result = generate(path, case, "scripts/beam.lua", options)
          assert.equal(#case.sequences, #result.outputs)
          for i, output in ipairs(result.outputs) do
            assert.same(case.sequences[i], output.ids)
            local score = case.sequences_scores[i]
            assert(math.abs(output.score - score) <= 1e-3 * math.abs(score))
          end
        end
      end
    end)
  end)
end
