-- Chains of samplers: from text ("top_k=40, dry(multiplier=0.8)"), from the single sampling
-- options, and what a strategy gets of them as opt.sampler.

local llm = require "llm"
local check = require "llm.check"
local fail = require "llm.fail"
local scripts = require "llm.scripts"
local sys = require "llm.sys"

local chain = {}

-- ---- the text of a chain ----

local WORDS = {["true"] = true, ["false"] = false}

local function read_value(text)
  local quoted = text:match('^"(.*)"$') or text:match("^'(.*)'$")
  if quoted then return quoted end
  if WORDS[text] ~= nil then return WORDS[text] end
  if text == "nan" or text == "inf" then return nil end
  return tonumber(text) or (text ~= "" and text or nil)
end

-- Splits at commas outside of parentheses and quotes; nil if those do not match.
local function split(text)
  local parts, depth, quote, from = {}, 0, nil, 1
  for at = 1, #text do
    local c = text:sub(at, at)
    if quote then
      if c == quote then quote = nil end
    elseif c == '"' or c == "'" then
      quote = c
    elseif c == "(" or c == "[" then
      depth = depth + 1
    elseif c == ")" or c == "]" then
      depth = depth - 1
    elseif c == "," and depth == 0 then
      parts[#parts + 1] = text:sub(from, at - 1)
      from = at + 1
    end
    if depth < 0 then return nil end
  end
  if depth ~= 0 or quote then return nil end
  parts[#parts + 1] = text:sub(from)
  for i, part in ipairs(parts) do parts[i] = part:match("^%s*(.-)%s*$") end
  return parts
end

local function read_params(text)
  local params, parts = {}, split(text)
  if text:find("^%s*$") then return params end
  for _, part in ipairs(parts or {}) do
    local name, value = part:match("^([%a_][%w_]*)%s*=%s*(.*)$")
    if name then value = read_value(value) end
    if value == nil or params[name] ~= nil then return nil end
    params[name] = value
  end
  return parts and params
end

local function read_stage(text)
  local name, inside = text:match("^([%w_./-]+)%s*%((.*)%)$")
  if name then
    local params = read_params(inside)
    return params and {name = name, params = params}
  end
  local bare
  name, bare = text:match("^([%w_./-]+)%s*=%s*(.*)$")
  if name then
    local value = read_value(bare)
    return value ~= nil and {name = name, bare = value} or nil
  end
  return text:find("^[%w_./-]+$") and {name = text, params = {}} or nil
end

-- A list of {name, params} or {name, bare}: the only parameter; or nil, message.
function chain.parse(text)
  local stages = {}
  if text:find("^%s*$") then return stages end
  local parts = split(text)
  for _, part in ipairs(parts or {text}) do
    local stage = parts and read_stage(part)
    if not stage then
      return nil, ("sampler '%s' is not NAME, NAME=VALUE or NAME(PARAMETER=VALUE, …)")
        :format(part)
    end
    stages[#stages + 1] = stage
  end
  return stages
end

-- The chain that the single options ask for: penalties, temperature, top-k, top-p, min-p.
function chain.from_options(opt)
  local stages = {}
  local function add(name, params) stages[#stages + 1] = {name = name, params = params} end
  if opt.repetition_penalty then add("repetition", {penalty = opt.repetition_penalty}) end
  if opt.presence_penalty or opt.frequency_penalty then
    add("presence_frequency",
      {presence = opt.presence_penalty, frequency = opt.frequency_penalty})
  end
  if opt.temperature then add("temperature", {temperature = opt.temperature}) end
  if opt.top_k then add("top_k", {k = opt.top_k}) end
  if opt.top_p then add("top_p", {p = opt.top_p}) end
  if opt.min_p then add("min_p", {p = opt.min_p}) end
  return stages
end

local SINGLE = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
  "frequency_penalty"}

-- The stages that the options ask for; or nil, message.
function chain.collect(opt)
  local stages = chain.from_options(opt)
  if opt.sampler then
    for _, name in ipairs(SINGLE) do
      if opt[name] then
        return nil, ("--sampler and --%s: give one of them"):format((name:gsub("_", "-")))
      end
    end
    local message
    stages, message = chain.parse(opt.sampler)
    if not stages then return nil, message end
  end
  if opt.min_tokens and opt.min_tokens > 0 then
    table.insert(stages, 1, {name = "min_new_tokens", params = {n = opt.min_tokens}})
  end
  return stages
end

-- ---- stages ----

function chain.known()
  local names = {}
  for _, file in ipairs(sys.files()) do
    names[#names + 1] = file:match("^samplers/([^/]+)%.lua$")
  end
  table.sort(names)
  return table.concat(names, ", ")
end

-- Runs the file of a sampler; returns what it returns, or nil, message.
local function run_file(path)
  local chunk, message = loadfile(path)
  if not chunk then return nil, message end
  local ok, make = pcall(chunk)
  if not ok then return nil, fail.line(make) end
  return make
end

-- A path, or else a name: beside the script, in the current folder, bundled, where require looks.
local function load_sampler(name)
  if name:find("/", 1, true) or name:find("%.lua$") then return run_file(name) end
  local file, searched = ("samplers/%s.lua"):format((name:gsub("%.", "/"))), {}
  for _, folder in ipairs {scripts.folder or ".", "."} do
    local path = folder .. "/" .. file
    if sys.path_kind(path) == "file" then return run_file(path) end
    if path ~= searched[#searched] then searched[#searched + 1] = path end
  end
  local ok, make = pcall(require, "samplers." .. name)
  if ok then return make end
  if not tostring(make):find("module 'samplers." .. name .. "' not found", 1, true) then
    return nil, fail.line(make)
  end
  return nil, ("unknown sampler; known: %s; there is no %s"):format(chain.known(),
    table.concat(searched, ", no "))
end

-- The parameters as the sampler sees them. What it asks for is noted, so that a parameter which it
-- never asked for is known to be misspelt.
local function make_opts(stage, asked)
  return setmetatable({}, {
    __index = function(_, key)
      if not asked[key] then
        asked[#asked + 1] = tostring(key)
        asked[key] = true
      end
      if stage.bare == nil then return stage.params[key] end
      if #asked == 1 then return stage.bare end
    end,
    __newindex = function(_, key)
      fail.raise("misuse", "parameter '%s' of a sampler cannot be set", tostring(key))
    end,
  })
end

-- What was given and is not asked for, as a message, or nil.
local function find_unknown(stage, asked)
  if stage.bare ~= nil then
    if #asked == 0 then return "takes no parameter" end
    return #asked > 1 and "takes several parameters, name them: " .. table.concat(asked, ", ")
      or nil
  end
  for name in pairs(stage.params) do
    if not asked[name] then
      if #asked == 0 then return ("unknown parameter '%s'; it takes none"):format(name) end
      return ("unknown parameter '%s'; known: %s"):format(name, table.concat(asked, ", "))
    end
  end
end

-- An error of a sampler that met a nil, with the parameters that it asked for and did not get.
local function explain(stage, asked, message)
  local absent = {}
  for i, name in ipairs(asked) do
    local given = i == 1 and stage.bare
    if stage.bare == nil then given = stage.params[name] end
    if given == nil or given == false then absent[#absent + 1] = name end
  end
  if #absent == 0 or not message:find("nil", 1, true) then return message end
  return ("%s (not given: %s)"):format(message, table.concat(absent, ", "))
end

-- A sampler may ask for parameters in its stage only: one call on flat logits shows which.
local function probe(filter, model)
  local row = {}
  for i = 1, model and model.vocab_size or 2 do row[i] = 0 end
  pcall(filter, llm.logits {row}, {llm.seq {0}})
end

-- Returns the stage and the list of the parameters it asked for; or nil, message.
local function make_stage(stage, model)
  local make, message = load_sampler(stage.name)
  if type(make) ~= "function" then
    return nil, message or ("returns a %s, not a function"):format(type(make))
  end
  local asked, problems = {}, {}
  local opts = make_opts(stage, asked)
  check.problems[opts] = problems
  local ok, filter = pcall(make, opts, model)
  check.problems[opts] = nil
  if not ok then return nil, problems[1] or explain(stage, asked, fail.line(filter)) end
  if type(filter) ~= "function" then
    return nil, ("makes a %s, not a function(logits, seqs)"):format(type(filter))
  end
  message = find_unknown(stage, asked)
  if message and #problems == 0 then
    probe(filter, model)
    message = find_unknown(stage, asked)
  end
  message = message or problems[1]
  if message then return nil, message end
  return filter, asked
end

local function describe(value)
  if not check.is_tensor(value) then return "a " .. type(value) end
  return ("%s%d × %d"):format(llm.type(value) == "llm.Logits" and "logits of " or "",
    value.n_rows, value.n_columns)
end

-- Runs a stage; what it returns has the shape and the class of what it got.
local function run_stage(stage, filter, asked, logits, seqs)
  local ok, out = xpcall(filter, function(value)
    if fail.is_error(value) and value.kind ~= "misuse" then return value end
    local told = explain(stage, asked, fail.describe(value))
    return llm.error(fail.is_error(value) and "misuse" or "script",
      ("sampler %s: %s"):format(stage.name, told))
  end, logits, seqs)
  if not ok then error(out, 0) end
  if llm.type(out) == llm.type(logits) and out.n_rows == logits.n_rows
    and out.n_columns == logits.n_columns then
    return out
  end
  fail.raise("misuse", "sampler %s returned %s, not logits of %d × %d", stage.name, describe(out),
    logits.n_rows, logits.n_columns)
end

-- The stages as one function(logits, seqs) → logits; or nil, message.
function chain.build(stages, model)
  local filters, asked = {}, {}
  for i, stage in ipairs(stages) do
    local filter, known = make_stage(stage, model)
    if not filter then return nil, ("sampler %s: %s"):format(stage.name, known) end
    filters[i], asked[i] = filter, known
  end
  return function(logits, seqs)
    if not check.is_tensor(logits) then
      fail.raise("misuse", "logits must be a Tensor, got a %s", type(logits))
    end
    for i, filter in ipairs(filters) do
      logits = run_stage(stages[i], filter, asked[i], logits, seqs)
    end
    return logits
  end
end

-- ---- opt.sampler ----

local Sampler = {}

-- sampler(logits, seqs) → ids: the chain, then a draw with each sequence's stream at the position
-- of the token in the output. Without seqs: the job's own sequence, for one row.
function Sampler:__call(logits, seqs)
  seqs = self.sequences(logits, seqs)
  local rngs = {}
  for i, seq in ipairs(seqs) do
    rngs[i] = self.rng:fork(seq.stream):at(#seq - seq.n_prompt + 1)
  end
  return self.filter(logits, seqs):sample(rngs)
end

-- build: what chain.build returned; own: the sequence of the job; seed: an integer.
function chain.sampler(build, own, seed)
  local sampler = setmetatable({rng = llm.rng(seed), asked = false}, Sampler)
  function sampler.sequences(logits, seqs)
    sampler.asked = true
    if seqs ~= nil and type(seqs) ~= "table" then
      fail.raise("misuse", "seqs must be a list of sequences, got a %s", type(seqs))
    end
    local n = seqs and #seqs or 1
    if not check.is_tensor(logits) then
      fail.raise("misuse", "logits must be a Tensor, got a %s", type(logits))
    end
    if logits.n_rows ~= n then
      fail.raise("misuse", "%d rows of logits, %d sequences", logits.n_rows, n)
    end
    return seqs or {own}
  end
  function sampler.filter(logits, seqs)
    return build(logits, sampler.sequences(logits, seqs))
  end
  return sampler
end

return chain
