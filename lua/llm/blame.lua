-- Which sampler is to blame: an error of a choice (no finite entry, nan) says only what the row
-- was; this runs the last call of the chain again, stage by stage, and finds where it came from.
-- Nothing of this costs anything before there is an error.

local llm = require "llm"
local fail = require "llm.fail"

local WHAT = {nan = "nan", no_finite = "no finite entry"}
local DID = {nan = "made nan", no_finite = "left no token"}

-- The first row a choice from which raises, and the kind of its error; nil if there is none.
local function find_fault(logits)
  for r, row in ipairs(logits:max():lists()) do
    local most = row[1]
    if most == -math.huge then return r, "no_finite" end
    if most ~= most or most == math.huge then return r, "nan" end
  end
end

-- A sequence as it was when it had n ids.
local function rewind(seq, n)
  if #seq == n then return seq:fork() end
  local twin = llm.seq(table.move(seq.ids, 1, seq.n_prompt, 1, {}))
  for i = seq.n_prompt + 1, n do twin:push(seq.ids[i]) end
  twin.stream = seq.stream
  return twin
end

-- What was wrong in a call, as an error's kind and message; nil if nothing was.
local function examine(build, call, seed)
  local seqs = {}
  for r, seq in ipairs(call.seqs) do seqs[r] = rewind(seq, call.lengths[r]) end
  local function place(r)
    local step = ("step %d"):format(#seqs[r] - seqs[r].n_prompt + 1)
    return #seqs > 1 and ("%s of row %d"):format(step, r) or step
  end
  local row, kind = find_fault(call.logits)
  if row then return kind, ("%s in the logits at %s"):format(WHAT[kind], place(row)) end
  local name
  pcall(build, call.logits, seqs, seed, function(stage, _, after)
    if name then return end
    row, kind = find_fault(after)
    name = row and stage
  end)
  if name then return kind, ("sampler %s %s at %s"):format(name, DID[kind], place(row)) end
end

-- The error with sampler and step in its message, or as it is: also what the script raised itself.
-- build: what chain.build returned;
-- call: the last one, {logits, seqs, lengths (of those, then)}.
return function(build, call, seed, err)
  if not fail.is_error(err) or not WHAT[err.kind] or not err.message:find " of the logits" then
    return err
  end
  local ok, kind, message = pcall(examine, build, call, seed)
  return ok and message and llm.error(kind, message, err.traceback) or err
end
