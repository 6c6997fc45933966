-- One text in the making: ids come in, text goes out, and the first reason to end it is kept. The
-- same object takes what a strategy emits and what it returns at the end, so both end by the same
-- rules.

local check = require "llm.check"
local fail = require "llm.fail"
local logprobs = require "llm.logprobs"
local new_stream = require "llm.stream"

local Output = {}
Output.__index = Output

-- job: {model, prompt, opt, rule, stages}; own: the sequence that the ids are pushed to;
-- sink: function(bytes) or nil.
local function new(job, own, sink)
  return setmetatable({
    job = job, own = own, ids = {}, reason = nil,
    stream = new_stream(job.model, job.prompt, job.opt.stop or {}, sink),
    logprobs = {},  -- of each id, where its logits were given
    n_scored = 0, sum = 0,
  }, Output)
end

local function read_id(model, id)
  if check.is_tensor(id) then
    if id.n_rows * id.n_columns ~= 1 then
      fail.raise("misuse", "emit: one id at a time, got a Tensor of %d x %d", id.n_rows,
        id.n_columns)
    end
    id = id:item()
  end
  local whole = math.type(id) and math.tointeger(id)
  if not whole then fail.raise("misuse", "emit: id must be a token id, got %s", type(id)) end
  if whole < 0 or whole >= model.vocab_size then
    fail.raise("misuse", "emit: id %d is not in the vocabulary of %d", whole, model.vocab_size)
  end
  return whole
end

local function read_info(info)
  if info == nil then return nil, 0 end
  if type(info) ~= "table" then
    fail.raise("misuse", "emit: the second argument is a table {logits =, skip =}, got a %s",
      type(info))
  end
  for key in pairs(info) do
    if key ~= "logits" and key ~= "skip" then
      fail.raise("misuse", "emit: unknown key '%s'; known: logits, skip", tostring(key))
    end
  end
  local skip, row = math.tointeger(info.skip or 0), info.logits
  if not skip or skip < 0 then
    fail.raise("misuse", "emit: skip is a number of bytes, got %s", tostring(info.skip))
  end
  if row ~= nil and (not check.is_tensor(row) or row.n_rows ~= 1) then
    fail.raise("misuse", "emit: logits is one row")
  end
  return row, skip
end

local MOST_LATE = 1000 -- calls after the end that are taken for a strategy that does not listen

-- The text is over. A strategy that never listens would go on for ever.
function Output:refuse()
  self.n_late = (self.n_late or 0) + 1
  if self.n_late > MOST_LATE then
    fail.raise("misuse", "emit: the text is over (%s) since %d calls; end when emit returns a "
      .. "reason", self.reason, MOST_LATE)
  end
  return self.reason
end

-- Adds an id, unless the text is over. Returns the reason if it is over now: eos, stop or length.
function Output:add(id, info)
  if self.reason then return self:refuse() end
  local job, ids = self.job, self.ids
  local row, skip = read_info(info)
  id = read_id(job.model, id)
  if row then
    local entry = logprobs.entry(job, row, id, self.own)
    self.logprobs[#ids + 1] = entry
    self.n_scored, self.sum = self.n_scored + 1, self.sum + entry.logprob
  end
  ids[#ids + 1] = id
  if job.model:is_eog(id) then return self:finish("eos") end
  if self.stream:push(id, skip) then return self:finish("stop") end
  if job.rule and job.rule(ids, self.stream:text()) then return self:finish("stop") end
  if #ids >= job.opt.max_tokens then return self:finish("length") end
end

-- Ends the text, if it is not over yet.
function Output:finish(reason)
  if not self.reason then
    self.reason = reason
    self.stream:flush()
  end
  return self.reason
end

function Output:text()
  return self.stream:text()
end

-- The sum of the log-probabilities, if those of all ids are known.
function Output:score_sum()
  if self.n_scored == #self.ids and self.n_scored > 0 then return self.sum end
end

return new
