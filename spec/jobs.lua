-- Jobs for specs: a strategy (bundled name, or source), arguments as on the command line, a prompt.
local chain = require "llm.chain"
local options = require "llm.options"
local run = require "llm.run"
local scripts = require "llm.scripts"

local M = {}

local function find(strategy)
  if not strategy:find "%s" then return assert(scripts.find(strategy)) end
  if not strategy:find "return [{(%d]" then
    strategy = ("return {decode = function(model, prompt, opt, emit) %s end}"):format(strategy)
  end
  return {source = strategy, chunk_name = "@test.lua", name = "test"}
end

-- prompt: text or ids; values: options that are no text (models); more: fields of the job.
function M.make(model, strategy, arguments, prompt, values, more)
  local script = find(strategy)
  local chunk = assert(scripts.load(script))
  local specs = assert(options.collect(chunk().options))
  local words = {}
  for word in (arguments or ""):gmatch "%S+" do words[#words + 1] = word:gsub("%%20", " ") end
  local opt = assert(options.parse(words, specs))
  for name, value in pairs(values or {}) do opt[name] = value end
  local ids = prompt or "And the LORD said unto"
  if type(ids) == "string" then ids = model:encode(ids) end
  opt.max_tokens = math.min(opt.max_tokens, model.ctx - #ids + 1)
  opt.max_rows = model.max_rows
  local stages = assert(chain.collect(opt))
  local job = {model = model, script = script, prompt = ids, opt = options.seal(opt, specs),
    stages = assert(chain.build(stages, model))}
  for name, value in pairs(more or {}) do job[name] = value end
  return job
end

-- The result of one job alone.
function M.run(...)
  return run.job(M.make(...))
end

-- Results in the order of the jobs, run side by side; and the order in which they ended.
function M.run_all(list, n, plan)
  local results, order, i = {}, {}, 0
  plan = plan or {}
  function plan.next()
    i = i + 1
    return list[i]
  end
  function plan.done(job, result)
    for at, other in ipairs(list) do
      if other == job then results[at], order[#order + 1] = result, at end
    end
  end
  plan.jobs = n
  run.jobs(plan)
  return results, order
end

return M
