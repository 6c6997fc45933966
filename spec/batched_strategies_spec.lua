-- Every bundled strategy beside others of its kind, and with too few pages for all of them: each
-- line is the one that the job gives alone.
local json = require "llm.json"
local jobs = require "spec.jobs"
local scripts = require "llm.scripts"
local h = require "spec.helper"

local PROMPTS = {"And the LORD said unto", "In the beginning", "The king of", "And it came to pass"}

-- What they need, and what keeps them short.
local ARGUMENTS = {
  ban_strings = "--ban the,and", best_of_n = "--samples 3", cad = "--context The%20king%20said",
  constrained_beam = "--words king --beam 3", contrastive_decoding = "--sample",
  diverse_beam = "--beam 4", mcts = "--simulations 4 -n 3", mbr = "--samples 3 -n 5",
  self_consistency = "--samples 3", tree_of_thought = "--depth 2 --thought-tokens 4 --samples 2",
}
local MODELS = {contrastive_decoding = "amateur", speculative = "draft"}

local function line(result)
  assert(not result.error, result.error and result.error.message)
  result.timings = nil
  return json.encode(result)
end

describe("a strategy beside others", function()
  local wide, narrow, second
  setup(function()
    wide, second = h.builtin {ctx = 128, threads = 2}, h.builtin {ctx = 128, kv = "q8_0"}
    narrow = h.builtin {ctx = 128, pages = 14, threads = 2}
  end)
  teardown(function()
    wide:close()
    narrow:close()
    second:close()
  end)

  for _, name in ipairs(scripts.bundled()) do
    local strategy = scripts.load(scripts.find(name))()
    if strategy and strategy.decode then
      for _, chain in ipairs {"", " --temperature 0.8 --top-k 30 --repetition-penalty 1.1"} do
        it("gives the line that it gives alone: " .. name .. chain, function()
          local values = MODELS[name] and {[MODELS[name]] = second}
          local arguments = "-n 8 " .. (ARGUMENTS[name] or "") .. chain
          local alone = {}
          for i, prompt in ipairs(PROMPTS) do
            alone[i] = line(jobs.run(wide, name, arguments, prompt, values))
          end
          for _, model in ipairs {wide, narrow} do
            local list = {}
            for i, prompt in ipairs(PROMPTS) do
              list[i] = jobs.make(model, name, arguments, prompt, values)
            end
            for i, result in ipairs((jobs.run_all(list, 4))) do
              assert.equal(alone[i], line(result))
            end
          end
        end)
      end
    end
  end
end)
