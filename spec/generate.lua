-- The golden generations, through the program as a user runs it: each kind of case as one batch job
-- whose lines have the processors of the reference as a chain of samplers, in transformers' order,
-- and guidance as scripts/cfg.lua. LLMLUA_SPEC_CASE=N runs case N of each file alone.
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

local function script_of(case)
  return case.kind == "beam" and "beam" or case.options.guidance_scale and "cfg" or "greedy"
end

-- The case as a line of a batch job; `at`: which it is.
local function line_of(case, at)
  local line = {id = at, prompt = case.prompt_ids, max_tokens = case.max_new_tokens,
    beam = case.num_beams, length_penalty = case.length_penalty,
    early_stopping = case.early_stopping, guidance_scale = case.options.guidance_scale,
    negative_prompt_ids = case.options.negative_prompt_ids}
  local chain = chain_of(case.options)
  if chain ~= "" then line.sampler = chain end
  return json.encode(line)
end

-- Results by id.
local function run(path, script, lines)
  local input = h.write(h.scratch "cases.jsonl", table.concat(lines, "\n") .. "\n")
  local out, err, code = h.run(("%s -m %s --device ref --quiet --jobs 24 --prompts %s")
    :format(script, h.quote(path), h.quote(input)))
  assert(code == 0, err)
  local results = {}
  for line in out:gmatch "[^\n]+" do
    local result = assert(json.decode(line, 1, json.null), line)
    results[result.id] = result
  end
  return results
end

-- Calls check(case, result) for each case of a model that `is_meant` says yes to.
return function(name, is_meant, check)
  local n, met, cases, lines = 0, 0, {}, {}
  for case in h.lines("reference/generate/" .. name .. ".jsonl") do
    n = n + 1
    if is_meant(case) and (not only or only == n) then
      local script = script_of(case)
      lines[script] = lines[script] or {}
      table.insert(lines[script], line_of(case, n))
      cases[n] = case
    end
  end
  for script, list in pairs(lines) do
    for at, result in pairs(run(h.real_path(name), script, list)) do
      check(cases[at], result)
      met, cases[at] = met + 1, nil
    end
  end
  assert(next(cases) == nil and (met > 0 or only))
end
