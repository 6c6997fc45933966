-- The golden generations, through the program as a user runs it: the cases of the reference, with
-- their processors as a chain of samplers in transformers' order, and guidance as scripts/cfg.lua.
-- LLMLUA_SPEC_CASE=N runs case N of each file alone.
local h = require "spec.helper"
local json = require "dkjson"

local only = tonumber(os.getenv "LLMLUA_SPEC_CASE")

local KNOWN = {guidance_scale = true, negative_prompt_ids = true, sequence_bias = true,
  repetition_penalty = true, no_repeat_ngram_size = true, bad_words_ids = true,
  min_new_tokens = true}

-- The text of the chain for a case's options.
local function chain_of(options)
  local stages = {}
  local function add(form, value)
    if value then stages[#stages + 1] = form:format(json.encode(value)) end
  end
  for key in pairs(options) do assert(KNOWN[key], key) end
  add("sequence_bias(bias=%s)", options.sequence_bias)
  add("repetition=%s", options.repetition_penalty)
  add("no_repeat_ngram=%s", options.no_repeat_ngram_size)
  add("bad_words(ids=%s)", options.bad_words_ids)
  add("min_new_tokens=%s", options.min_new_tokens)
  return table.concat(stages, ", ")
end

-- The script and its own arguments.
local function script_of(case)
  local options = case.options
  if case.kind == "beam" then
    return "scripts/beam.lua", ("--beam %d --length-penalty %s --early-stopping %s"):format(
      case.num_beams, case.length_penalty, tostring(case.early_stopping))
  end
  if not options.guidance_scale then return "scripts/greedy.lua", "" end
  local negative = options.negative_prompt_ids
  return "scripts/cfg.lua", ("--guidance-scale %s%s"):format(options.guidance_scale,
    negative and " --negative-prompt-ids " .. table.concat(negative, ",") or "")
end

local function generate(path, case)
  local script, arguments = script_of(case)
  local chain = chain_of(case.options)
  if chain ~= "" then arguments = arguments .. " --sampler " .. h.quote(chain) end
  local out, err, code = h.run(("%s -m %s --device ref --json --quiet -n %d --prompt-ids %s %s")
    :format(script, h.quote(path), case.max_new_tokens, table.concat(case.prompt_ids, ","),
      arguments))
  assert(code == 0, err)
  return assert(json.decode(out, 1, json.null), out)
end

-- Calls check(case, result) for each case of a model that `is_meant` says yes to.
return function(name, is_meant, check)
  local n, met = 0, 0
  for case in h.lines("reference/generate/" .. name .. ".jsonl") do
    n = n + 1
    if is_meant(case) and (not only or only == n) then
      check(case, generate(h.real_path(name), case))
      met = met + 1
    end
  end
  assert(met > 0 or only)
end
