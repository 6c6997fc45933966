-- Makes jobs (llm.run says what they are) from the options of a run and what one prompt has of its
-- own. What is wrong with a prompt is a message, never an error: the others go on.

local chain = require "llm.chain"
local fail = require "llm.fail"
local json = require "llm.json"
local options = require "llm.options"
local stop = require "llm.stop"
local sys = require "llm.sys"

local Maker = {}
Maker.__index = Maker

local job = {}

local OWN = {id = true, prompt = true, prompt_ids = true} -- fields of a request, and no options
local MOST_CHAINS = 256 -- that are kept
local MAKE_SECONDS = 10 -- that files of samplers and stop rules may take; less for short jobs
local TOKEN_BYTES = 256 -- of a long token: a text of more per place of the context cannot fit

-- ---- the options of a run ----

local function check_stops(opt, name)
  for _, text in ipairs(opt.stop or {}) do
    if text == "" then return nil, name .. ": an empty text would stop at once" end
  end
  return true
end

local function check_logprobs(opt)
  if not opt.processed_logprobs or opt.logprobs then return true end
  return nil, "--processed-logprobs needs --logprobs"
end

local function make_seconds(opt)
  return math.max(1, math.min(MAKE_SECONDS, opt.max_seconds or MAKE_SECONDS))
end

local function chain_text(stages)
  local names = {}
  for i, stage in ipairs(stages) do names[i] = stage.name end
  return table.concat(names, ", ")
end

-- run: {script = {source, chunk_name}, specs (options.collect), opt (checked values), explain =
-- function(index) → what hears from each sampler of that job (nil: nobody asks)}. What can be
-- checked without the model is. Returns the maker, or nil, message, and whether that is a file's
-- fault rather than the command line's.
function job.maker(run)
  local maker = setmetatable({script = run.script, specs = run.specs, opt = run.opt, chains = {},
    n_chains = 0, explain = run.explain}, Maker)
  local ok, message = check_stops(run.opt, "--stop")
  if ok then ok, message = check_logprobs(run.opt) end
  if ok then ok, message = chain.collect(run.opt) end
  if not ok then return nil, message end
  if run.opt.stop_rule then
    maker.make_rule, maker.rule_hash = stop.read_rule(run.opt.stop_rule,
      make_seconds(run.opt))
    if not maker.make_rule then return nil, maker.rule_hash, true end
  end
  return maker
end

-- The model, and the chain of the run's own options made for it. Returns true, or nil, message.
function Maker:bind(model)
  self.model, self.chains, self.n_chains = model, {}, 0
  local made, message = self:build_chain(self.opt)
  return made and true, message
end

-- ---- sampling ----

local function is_single(spec)
  return spec.section == "sampling" and spec.name ~= "sampler" and spec.name ~= "seed"
end

local function chain_key(opt, specs)
  local parts = {}
  for _, spec in ipairs(specs) do
    if spec.section == "sampling" and spec.name ~= "seed" or spec.name == "min_tokens" then
      parts[#parts + 1] = tostring(opt[spec.name]):gsub("%%", "%%%%")
    end
  end
  return table.concat(parts, "%,")
end

-- The chain that the options ask for: {filter, n, text}; or nil, message. A stage keeps what it
-- remembers in the sequences, so jobs with the same chain share it, unless each is to tell (as
-- chain.build has it) what its own does.
function Maker:build_chain(opt, tell)
  local key = chain_key(opt, self.specs)
  local known, seconds = not tell and self.chains[key], make_seconds(opt)
  if known and (known.filter or known.seconds >= seconds) then
    return known.filter and known, known.message
  end
  local stages, message = chain.collect(opt)
  if not stages then return nil, message end
  local filter
  filter, message = chain.build(stages, self.model, tell, seconds)
  local made = {filter = filter, n = #stages, text = chain_text(stages), message = message,
    seconds = seconds}
  if tell or sys.interrupted() then return filter and made, message end
  if self.n_chains == MOST_CHAINS then self.chains, self.n_chains = {}, 0 end
  self.chains[key], self.n_chains = made, self.n_chains + 1 -- failures too: they may take long
  return filter and made, message
end

-- Sampling of a request replaces what the run has of the other kind: its chain the single options,
-- a single option the chain.
local function settle_sampling(opt, request, specs)
  local has_single = false
  for _, spec in ipairs(specs) do
    if is_single(spec) then
      has_single = has_single or request[spec.name] ~= nil
      if request.sampler ~= nil and request[spec.name] == nil then opt[spec.name] = nil end
    end
  end
  if has_single and request.sampler == nil then opt.sampler = nil end
end

-- ---- one prompt ----

local function may_be_own(spec)
  if spec.section == "script" then return spec.type ~= "file" and spec.type ~= "model" end
  return spec.line
end

function Maker:known()
  local names = {"id", "prompt", "prompt_ids"}
  for _, spec in ipairs(self.specs) do
    if may_be_own(spec) then names[#names + 1] = spec.name end
  end
  return table.concat(names, ", ")
end

-- A line must not run any file that it likes.
local function check_names(sampler)
  for _, stage in ipairs(chain.parse(sampler) or {}) do
    if not stage.name:find "^[%w_.-]+$" or stage.name:find "%.lua$" then
      return nil, ("sampler '%s': a file; lines may only name samplers"):format(stage.name)
    end
  end
  return true
end

local function copy_lists(opt)
  for name, value in next, opt do
    if type(value) == "table" and not getmetatable(value) then
      opt[name] = table.move(value, 1, #value, 1, {})
    end
  end
end

-- The options of the run with those of the request in their place; or nil, message.
function Maker:merge(request)
  local opt = {}
  for name, value in next, self.opt do opt[name] = value end
  copy_lists(opt)
  local names = {}
  for name, value in pairs(request) do
    if not OWN[name] and value ~= json.null then names[#names + 1] = name end
  end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do
    local spec = self.specs[name]
    if type(spec) ~= "table" then
      return nil, ("unknown option '%s'; known: %s"):format(tostring(name), self:known())
    end
    if not may_be_own(spec) then
      return nil, ("'%s' is an option of the whole run; of its own a prompt may have %s")
        :format(name, self:known())
    end
    local value, message = options.check(spec, request[name])
    if value == nil and spec.type == "list" and json.is_object(request[name]) then
      message = ("%s: %s is not %s"):format(name, json.encode(request[name]),
        options.describe(spec))
    end
    if value == nil then return nil, (message:gsub("^%-%-[%w-]+", name, 1)) end
    opt[name] = value
  end
  local given = {}
  for _, name in ipairs(names) do given[name] = opt[name] end
  settle_sampling(opt, given, self.specs)
  local ok, message = check_stops(given, "stop")
  if ok and given.sampler then ok, message = check_names(given.sampler) end
  if not ok then return nil, message end
  return opt
end

local function read_ids(model, ids)
  local out = {}
  for i = 1, #ids do
    local id = type(ids[i]) == "number" and math.tointeger(ids[i])
    if not id then return nil, ("prompt_ids: place %d holds no token id"):format(i) end
    if id < 0 or id >= model.vocab_size then
      return nil, ("id %d at place %d is not in the vocabulary of %d"):format(id, i,
        model.vocab_size)
    end
    out[i] = id
  end
  return out
end

-- The ids of {prompt (text or ids) or prompt_ids}, of an empty one BOS; or nil, message.
function job.encode(model, request)
  local text, ids, message = request.prompt, request.prompt_ids
  if text == json.null then text = nil end
  if ids == json.null then ids = nil end
  local name = text == nil and "prompt_ids" or "prompt"
  if text ~= nil and ids ~= nil then return nil, "prompt and prompt_ids: give one of them" end
  if type(text) == "table" then ids, text = text, nil end
  if text == nil and ids == nil then return nil, "no prompt" end
  if text ~= nil and type(text) ~= "string" then
    return nil, ("prompt is a %s, not a text or a list of ids"):format(type(text))
  end
  if text == nil and type(ids) ~= "table" then
    return nil, ("prompt_ids is a %s, not a list of ids"):format(type(ids))
  end
  if text then
    ids = model:encode(text)
  else
    if json.is_object(ids) or #ids == 0 and next(ids) ~= nil then
      return nil, ("%s is an object, not %sa list of ids"):format(name,
        name == "prompt" and "a text or " or "")
    end
    ids, message = read_ids(model, ids)
    if not ids then return nil, message end
  end
  if #ids > 0 then return ids end
  if not model.bos then return nil, "the prompt is empty and the model has no BOS token" end
  return {model.bos}
end

-- Whether it may name a result: a text or an integer.
function job.is_id(id)
  return type(id) == "string" or math.type(id) == "integer"
end

-- request: {prompt (text or ids) or prompt_ids, id, and options by name, typed or as text}. Returns
-- the job; or nil, message.
function Maker:make(request, index)
  local id, model = request.id, self.model
  if id == json.null then id = nil end
  if id ~= nil and not job.is_id(id) then
    return nil, "id must be a text or an integer of 64 bits"
  end
  local text = request.prompt
  if type(text) == "string" and #text > TOKEN_BYTES * model.ctx then
    return nil, ("prompt too long: %d bytes, more than %d tokens can be; that many the context "
      .. "holds (--ctx)"):format(#text, model.ctx)
  end
  local ids, message = job.encode(model, request)
  if not ids then return nil, message end
  if #ids > model.ctx then
    return nil, ("prompt too long: %d tokens, the context holds %d (--ctx)"):format(#ids, model.ctx)
  end
  local opt
  opt, message = self:merge(request)
  if not opt then return nil, message end
  local made
  made, message = self:build_chain(opt, self.explain and self.explain(index))
  if not made then return nil, message end
  local rule
  if self.make_rule then
    rule, message = self.make_rule(opt.seed)
    if not rule then return nil, message end
  end
  opt.max_tokens = math.min(opt.max_tokens, model.ctx - #ids + 1)
  opt.max_rows = model.max_rows
  return {model = model, script = self.script, prompt = ids, stages = made.filter, rule = rule,
    opt = options.seal(opt, self.specs, options.common_names()), index = index, id = id,
    max_seconds = opt.max_seconds, n_stages = made.n, chain_text = made.text}
end

-- The result of a prompt that was refused.
function job.refused(index, id, message)
  return {index = index, id = job.is_id(id) and id or json.null,
    error = {kind = "input", message = message}}
end

-- make, of which an error too becomes a message.
function Maker:try(request, index)
  local ok, made, message = pcall(self.make, self, request, index)
  if ok then return made, message end
  return nil, fail.line(made)
end

return job
