-- Texts in the making, side by side: what strategies share that draw several continuations of one
-- prompt and return them as a list. A branch has a cache, a sequence with a stream of its own, and
-- ends by the host's rules: end token, stop texts, stop rule, length. Branches that grow together
-- are rows of one batch; those that are over leave it.

local llm = require "llm"
local fail = require "llm.fail"
local stop = require "llm.stop"
local text = require "llm.text"

local branches = {}

-- Fields: kv, seq; feed: ids that the cache does not hold yet; n: number of new ids; sum: of their
-- log-probabilities, the model's, before filters; text: of the new ids, without the stop text;
-- finish: why it is over ("eos", "stop", "length") or nil.
local Branch = {}
Branch.__index = Branch

local function give_rule(branch)
  local rule, message
  if branch.make_rule then rule, message = branch.make_rule(branch.opt.seed) end
  if message then fail.raise("input", "%s", message) end
  branch.rule = rule
  return branch
end

-- The branch of a prompt, nothing drawn yet. The cache holds all but the last id, so that forks
-- share the work.
function branches.new(model, prompt, opt)
  local kv, n, make_rule, message = model:cache(), #prompt, nil, nil
  if opt.stop_rule then make_rule, message = stop.read_rule(opt.stop_rule) end
  if opt.stop_rule and not make_rule then fail.raise("input", "%s", message) end
  if n > 1 then model:forward(kv, table.move(prompt, 1, n - 1, 1, {}), {rows = 0}) end
  return give_rule(setmetatable({model = model, opt = opt, make_rule = make_rule, kv = kv,
    seq = llm.seq(prompt), feed = {prompt[n]}, n = 0, sum = 0.0, text = ""}, Branch))
end

-- A branch of the same text so far, with a cache of its own; stream: of its noise (default: the
-- same). A stop rule begins anew: it is of one text.
function Branch:fork(stream)
  local twin = setmetatable({}, Branch)
  for key, value in pairs(self) do twin[key] = value end
  twin.kv, twin.seq = self.kv:fork(), self.seq:fork()
  twin.feed = table.move(self.feed, 1, #self.feed, 1, {})
  twin.seq.stream = stream or self.seq.stream
  return give_rule(twin)
end

function Branch:close()
  self.kv:close()
end

-- The new ids of a sequence.
function branches.new_ids(seq)
  local ids = seq.ids
  return table.move(ids, seq.n_prompt + 1, #ids, 1, {})
end

function Branch:ids()
  return branches.new_ids(self.seq)
end

-- The mean log-probability of a new id. Without any: 0, as if each were certain.
function Branch:mean()
  return self.sum / math.max(1, self.n)
end

local function end_of(self, id)
  local whole = self.text
  if self.model:is_eog(id) then return "eos" end
  local first = stop.find(whole, self.opt.stop or {})
  if first then self.text = whole:sub(1, first - 1) end
  if first or (self.rule and self.rule(self:ids(), whole)) then return "stop" end
  if self.n >= self.opt.max_tokens then return "length" end
end

-- Appends an id with this log-probability. Returns the branch.
function Branch:push(id, logprob)
  if not self.model:is_eog(id) then
    self.text = self.text .. text.continuation(self.model, self.seq.ids)(id)
  end
  self.seq:push(id)
  table.insert(self.feed, id)
  self.n, self.sum = self.n + 1, self.sum + logprob
  self.finish = end_of(self, id)
  return self
end

-- Refuses more rows than a pass may be asked for.
function branches.check_rows(opt, n)
  if n > opt.max_rows then
    fail.raise("misuse", "%d rows asked, --max-rows is %d", n, opt.max_rows)
  end
end

-- One pass over branches that are not over: logits, a row for each, and their sequences.
function branches.forward(list)
  local kvs, feeds, seqs = {}, {}, {}
  for i, branch in ipairs(list) do
    kvs[i], feeds[i], seqs[i] = branch.kv, branch.feed, branch.seq
  end
  local logits = list[1].model:forward(kvs, feeds)
  for _, branch in ipairs(list) do branch.feed = {} end
  return logits, seqs
end

-- One pass over branches that are not over. For each the list of its next tokens, at most k, the
-- likeliest first as the chain has them: {id, logprob (the model's), prior (the chain's
-- probability)}, and in the list `entropy`, of what the chain leaves. Also the logits.
function branches.expand(list, opt, k)
  local logits, seqs = branches.forward(list)
  local filtered, out = opt.sampler.filter(logits, seqs), {}
  local scores, ids = filtered:topk(k)
  local logprobs = (logits:gather(ids) - logits:logsumexp()):lists()
  local priors = (scores - filtered:logsumexp()):exp():lists()
  local entropies = filtered:entropy():tolist()
  scores, ids = scores:lists(), ids:lists()
  for i in ipairs(list) do
    out[i] = {entropy = entropies[i]}
    for c, id in ipairs(ids[i]) do
      if scores[i][c] == -math.huge then break end
      out[i][c] = {id = id, logprob = logprobs[i][c], prior = priors[i][c]}
    end
  end
  return out, logits
end

-- Lengthens branches in one batch until each is over or is_done(branch) says so; it is asked after
-- each id. draw(logits, seqs) → ids, as opt.sampler. logits: of the first step, where the branches
-- have been fed already.
function branches.grow(list, draw, is_done, logits)
  local live, seqs = {}, {}
  for _, branch in ipairs(list) do
    if not branch.finish then
      live[#live + 1], seqs[#seqs + 1] = branch, branch.seq
    end
  end
  while #live > 0 do
    if not logits then logits, seqs = branches.forward(live) end
    local ids = draw(logits, seqs)
    local logprobs, still = (logits:gather(ids) - logits:logsumexp()):tolist(), {}
    for i, id in ipairs(ids:tolist()) do
      local branch = live[i]:push(id, logprobs[i])
      local is_over = is_done and is_done(branch)
      if not branch.finish and not is_over then still[#still + 1] = branch end
    end
    live, logits = still, nil
  end
end

-- The draw for `grow`: of opt.sampler if opt.sample is set, else the likeliest id that the chain
-- leaves.
function branches.drawer(opt)
  if opt.sample then return opt.sampler end
  return function(logits, seqs) return opt.sampler.filter(logits, seqs):argmax() end
end

-- Sorts a list by a number, best first; equals stay in their order.
function branches.sort(list, score)
  local scores, place = {}, {}
  for i, item in ipairs(list) do scores[item], place[item] = score(item), i end
  table.sort(list, function(a, b)
    if scores[a] ~= scores[b] then return scores[a] > scores[b] end
    return place[a] < place[b]
  end)
  return list, scores
end

-- What decode returns of branches with a score each: best first. Those without an id are left out.
function branches.results(list, score)
  local some, out = {}, {}
  for _, branch in ipairs(list) do
    if branch.n > 0 then some[#some + 1] = branch end
  end
  local _, scores = branches.sort(some, score)
  for i, branch in ipairs(some) do
    out[i] = {ids = branch:ids(), score = scores[branch], finish = branch.finish}
  end
  return out
end

-- Draws n continuations in one batch, each to its end: the i-th is what plain sampling draws with
-- stream i. rank(list) → what decode returns; it is asked too when the job ends early, for what
-- there is then.
function branches.samples(model, prompt, opt, n, rank)
  branches.check_rows(opt, n)
  local list = {branches.new(model, prompt, opt)}
  for i = 2, n do list[i] = list[1]:fork(i) end
  function opt.partial() return rank(list) end
  branches.grow(list, opt.sampler, function(branch)
    if branch.finish then branch:close() end
  end)
  return rank(list)
end

return branches
