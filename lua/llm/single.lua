-- One prompt on the command line: its text as it is made, or a line of JSON.

local ending = require "llm.ending"
local job = require "llm.job"
local json = require "llm.json"
local loading = require "llm.loading"
local prompt = require "llm.prompt"
local report = require "llm.report"
local run = require "llm.run"
local sys = require "llm.sys"

local single = {is_json_out = false} -- whether the line of --json has been printed

local function print_result(result, opt, streamed)
  if opt.json then
    single.is_json_out = true
    ending.put(json.encode(result) .. "\n")
  else
    if not streamed then ending.put(result.text) end
    ending.put("\n")
  end
end

-- The line of --json for what failed before there was a result.
function single.print_failure(value)
  if single.is_json_out or ending.is_exit(value) and value.status == ending.OK then return end
  single.is_json_out = true
  local kind, message = ending.read(value)
  pcall(ending.put, json.encode({error = {kind = kind, message = message}}) .. "\n")
end

local function warn(work, result, opt, n_late)
  if result.error then return end
  if result.counts.output == 0 and opt.max_tokens > 0 then
    ending.say("warning: the strategy ended before its first token")
  elseif n_late > 1000 then
    ending.say("warning: the strategy went on emitting after the end of the text, until it was "
      .. "ended")
  end
  if opt.explain and work.n_stages == 0 then
    ending.say("warning: --explain: there is no sampler chain")
  end
  if work.n_stages > 0 and not opt.sampler.asked then
    ending.say("warning: this strategy does not use the sampler chain (%s)", work.chain_text)
  end
end

local function finish(work, result, opt, n_late)
  if not opt.quiet then
    warn(work, result, opt, n_late)
    if not result.error or #result.ids > 0 then
      io.stderr:write("llmlua: ", report.figures(result), "\n")
    end
  end
  if opt.verbose then io.stderr:write(report.memory(work.model, result), "\n") end
  local wrong = result.error
  if not wrong then return ending.OK end
  if wrong.kind == "interrupted" then ending.exit(ending.INTERRUPTED, "interrupted") end
  ending.fail_as(wrong.kind, wrong.message, wrong.traceback ~= json.null and wrong.traceback)
end

-- Runs the strategy on the prompt that the options name. Returns the exit status.
function single.run(script, opt, given, specs)
  local maker, message, is_file = job.maker {script = script, specs = specs, opt = opt,
    explain = opt.explain and report.explainer or nil}
  if not maker and sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  if not maker and is_file then ending.exit(ending.FAILURE, "%s", message) end
  if not maker then ending.usage(message, specs) end
  if opt.logprobs and not opt.json then ending.usage("--logprobs needs --json", specs) end
  local model, is_builtin = loading.models(opt, specs)
  local bound
  bound, message = maker:bind(model)
  if not bound and sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  if not bound then ending.exit(ending.USAGE, "%s", message) end
  local text = prompt.find(opt, given, specs, is_builtin)
  local work
  work, message = maker:make({prompt = text, prompt_ids = opt.prompt_ids}, 1)
  if not work and message:find("in the vocabulary", 1, true) then
    ending.exit(ending.USAGE, "--prompt-ids: %s", message)
  end
  if not work and sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  if not work then ending.exit(ending.FAILURE, "%s", message) end

  local broken, streamed
  local function sink(bytes)
    if not streamed then sys.progress(false) end
    streamed = true
    local ok, wrong = pcall(ending.put, bytes)
    if not ok then
      broken = wrong
      error(wrong, 0)
    end
  end
  work.sink = not opt.json and not opt.explain and sink or nil -- the text after what is told
  local result = run.job(work)
  local n_late = result.n_late or 0
  result.n_late = nil
  sys.progress(false)
  if broken then error(broken, 0) end
  if not result.error or #result.ids > 0 or opt.json then print_result(result, opt, streamed) end
  return finish(work, result, work.opt, n_late)
end

return single
