-- Chains of samplers: from the options, the stages of a chain, and what a strategy gets of them as
-- opt.sampler.

local llm = require "llm"
local blame = require "llm.blame"
local chain_text = require "llm.chain_text"
local check = require "llm.check"
local fail = require "llm.fail"
local limited = require "llm.limited"
local scripts = require "llm.scripts"
local sys = require "llm.sys"

local chain = {}

chain.parse, chain.write = chain_text.parse, chain_text.write

-- ---- the options ----

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
  local unknown = {}
  for name in pairs(stage.params) do
    if not asked[name] then unknown[#unknown + 1] = tostring(name) end
  end
  table.sort(unknown)
  if not unknown[1] then return nil end
  if #asked == 0 then return ("unknown parameter '%s'; it takes none"):format(unknown[1]) end
  return ("unknown parameter '%s'; known: %s"):format(unknown[1], table.concat(asked, ", "))
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
local function run_stage(stage, filter, asked, logits, seqs, seed)
  local ok, out = xpcall(filter, function(value)
    if fail.is_error(value) and value.kind ~= "misuse" then return value end
    local told = explain(stage, asked, fail.describe(value))
    return llm.error(fail.is_error(value) and "misuse" or "script",
      ("sampler %s: %s"):format(stage.name, told))
  end, logits, seqs, seed)
  if not ok then error(out, 0) end
  if llm.type(out) == llm.type(logits) and out.n_rows == logits.n_rows
    and out.n_columns == logits.n_columns then
    return out
  end
  fail.raise("misuse", "sampler %s returned %s, not logits of %d × %d", stage.name, describe(out),
    logits.n_rows, logits.n_columns)
end

-- Tells what a stage did with each row.
local function tell_stage(tell, name, before, after, seqs)
  local stays = after:gt(-math.huge)
  local kept, mass = stays:sum():lists(), before:softmax():where(stays, 0):sum():lists()
  for r = 1, after.n_rows do
    local seq = seqs and seqs[r]
    tell {step = seq and #seq - seq.n_prompt + 1, row = r, stage = name,
      kept = math.tointeger(kept[r][1]), total = after.n_columns, mass = mass[r][1]}
  end
end

-- What tell of chain.build is given, as text: "top_p kept 37 of 49152, mass 0.9004".
function chain.explain_line(record)
  return ("%s kept %d of %d, mass %.4f"):format(record.stage, record.kept, record.total,
    record.mass)
end

-- The functions of chain.build without a stage, but for the one that --min-tokens adds.
local empty = setmetatable({}, {__mode = "k"})

-- The stages as one function(logits, seqs, seed, each) → logits; or nil, message. seed: of the
-- job, default 0, which stages get as their third argument. tell (or nil): called after each stage
-- for each row, with {step (place in the output), row, stage, kept (ids), total (ids), mass (of
-- what was kept, in the distribution that the stage got)}. each(name, before, after, seqs): called
-- after each stage in place of that. seconds: all that the files of the stages may take until they
-- are made (nil: any time).
function chain.build(stages, model, tell, seconds)
  local filters, asked = {}, {}
  local left = seconds
  for i, stage in ipairs(stages) do
    local start = sys.clock()
    local filter, known = limited(left, function() return make_stage(stage, model) end)
    left = seconds and math.max(0.1, left - (sys.clock() - start))
    if not filter then return nil, ("sampler %s: %s"):format(stage.name, known) end
    filters[i], asked[i] = filter, known
  end
  local function tell_each(...) tell_stage(tell, ...) end
  local function run(logits, seqs, seed, each)
    if not check.is_tensor(logits) then
      fail.raise("misuse", "logits must be a Tensor, got a %s", type(logits))
    end
    each = each or tell and tell_each
    for i, filter in ipairs(filters) do
      local before = logits
      logits = run_stage(stages[i], filter, asked[i], before, seqs, seed)
      if each then each(stages[i].name, before, logits, seqs) end
    end
    return logits
  end
  empty[run] = #stages == 0 or #stages == 1 and stages[1].name == "min_new_tokens" or nil
  return run
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

-- build: what chain.build returned; own: the sequence of the job; seed: an integer; settle()
-- (or nil) is called before own is looked at: ids emitted may still be on their way to it.
-- sampler.blame(err) returns an error of a choice with the sampler and the step in its message, and
-- all other errors as they are.
function chain.sampler(build, own, seed, settle)
  local sampler = setmetatable({rng = llm.rng(seed), asked = false,
    is_empty = empty[build] or false}, Sampler)
  local last -- call: the strategy still has its logits, so that keeping them costs no memory
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
    if seqs then return seqs end
    if settle then settle() end
    return {own}
  end
  function sampler.filter(logits, seqs)
    seqs = sampler.sequences(logits, seqs)
    last = {logits = logits, seqs = {}, lengths = {}}
    for r, seq in ipairs(seqs) do last.seqs[r], last.lengths[r] = seq, #seq end
    return build(logits, seqs, seed)
  end
  function sampler.blame(err)
    return last and blame(build, last, seed, err) or err
  end
  return sampler
end

return chain
