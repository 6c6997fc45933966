-- The finished sequences of a beam search: the best `beam` of them by sum of log-probabilities
-- divided by length ^ length_penalty, and when the search may end. As in transformers' generate.

local branches = require "llm.branches"

local Pool = {}
Pool.__index = Pool

-- Puts an entry behind those that are as good.
local function insert(entries, entry)
  local at = 1
  while entries[at] and entries[at].score >= entry.score do at = at + 1 end
  table.insert(entries, at, entry)
end

-- One list of several, best first.
local function merge(lists)
  local all = {}
  for _, entries in ipairs(lists) do
    for _, entry in ipairs(entries) do insert(all, entry) end
  end
  return all
end

-- opt: beam, length_penalty, early_stopping (false, true or "never"), max_tokens, max_rows. width:
-- how many sequences it holds, opt.beam if none is given; a search in groups has a pool for each.
-- What is in all pools of opt when the job is interrupted is told by opt.partial.
local function new(opt, width)
  branches.check_rows(opt, opt.beam)
  local pool = setmetatable({opt = opt, width = width or opt.beam, entries = {}, live = nil}, Pool)
  local others = rawget(opt, "partial")
  function opt.partial() return merge({pool:partial(), others and others()}) end
  return pool
end

-- A finished sequence of n new ids, end token included. A better one takes the place of the worst.
function Pool:add(seq, sum, n)
  if sum == -math.huge then return end
  local entry = {seq = seq, score = sum / n ^ self.opt.length_penalty}
  insert(self.entries, entry)
  self.entries[self.width + 1] = nil
end

-- Whether the search is over after step n; best: the sum of the best live sequence, nil if none
-- lives; seq: that sequence, for an interruption. "never" asks what the best could still come to
-- (for a positive penalty: at full length), false takes its score now for that, true asks nothing
-- more.
function Pool:is_over(best, n, seq)
  self.live = seq and {seq = seq, score = best / n ^ self.opt.length_penalty}
  local opt, worst = self.opt, self.entries[self.width]
  if n >= opt.max_tokens or not best then return true end
  if not worst then return false end
  if opt.early_stopping == true then return true end
  local at_full_length = opt.early_stopping == "never" and opt.length_penalty > 0
  return best / (at_full_length and opt.max_tokens or n) ^ opt.length_penalty <= worst.score
end

local function list(entries)
  local out = {}
  for i, entry in ipairs(entries) do
    out[i] = {ids = branches.new_ids(entry.seq), score = entry.score}
  end
  return out
end

-- What decode returns: new ids and score of each, best first; of the other pools given too.
function Pool:results(...)
  local lists = {list(self.entries)}
  for i, other in ipairs {...} do lists[i + 1] = list(other.entries) end
  return merge(lists)
end

-- The same of a search that is not over; the best live sequence while none has ended.
function Pool:partial()
  return list(#self.entries > 0 and self.entries or {self.live})
end

return new
