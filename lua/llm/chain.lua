-- Chains of samplers: from text ("top_k=40, dry(multiplier=0.8)"), from the single sampling
-- options, and what a strategy gets of them as opt.sampler.

local llm = require "llm"
local check = require "llm.check"
local fail = require "llm.fail"
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

local function load_sampler(name)
  if name:find("/", 1, true) or name:find("%.lua$") then
    local chunk, message = loadfile(name)
    if not chunk then return nil, message end
    return chunk()
  end
  local ok, make = pcall(require, "samplers." .. name)
  if ok then return make end
  if not tostring(make):find("module 'samplers." .. name .. "' not found", 1, true) then
    return nil, fail.line(make)
  end
  return nil, "unknown sampler; known: " .. chain.known()
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

local function make_stage(stage, model)
  local make, message = load_sampler(stage.name)
  if type(make) ~= "function" then
    return nil, message or ("returns a %s, not a function"):format(type(make))
  end
  local asked = {}
  local ok, filter = pcall(make, make_opts(stage, asked), model)
  if not ok then return nil, fail.line(filter) end
  if type(filter) ~= "function" then
    return nil, ("makes a %s, not a function(logits, seqs)"):format(type(filter))
  end
  if stage.bare ~= nil and #asked ~= 1 then
    return nil, #asked == 0 and "takes no parameter"
      or "takes several parameters, name them: " .. table.concat(asked, ", ")
  end
  for name in pairs(stage.params or {}) do
    if not asked[name] then
      return nil, ("unknown parameter '%s'; known: %s"):format(name, table.concat(asked, ", "))
    end
  end
  return filter
end

-- The stages as one function(logits, seqs) → logits; or nil, message.
function chain.build(stages, model)
  local filters = {}
  for i, stage in ipairs(stages) do
    local filter, message = make_stage(stage, model)
    if not filter then return nil, ("sampler %s: %s"):format(stage.name, message) end
    filters[i] = filter
  end
  return function(logits, seqs)
    for i, filter in ipairs(filters) do
      logits = filter(logits, seqs)
      if not check.is_tensor(logits) then
        fail.raise("script", "sampler %s returns %s, not logits", stages[i].name, type(logits))
      end
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
