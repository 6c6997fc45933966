-- What exact speculation shares, whoever made the guesses: how many are of use, and the pass that
-- verifies them. Noise belongs to (seed; stream, position, id), so a guess is right if the draw at
-- its place gives that very id, and the text is what plain sampling draws, for every chain. Draws
-- are made one by one with the sequence itself, whose memory of samplers is thus as if nothing had
-- been guessed.

local speculation = {}

-- How many of `n` guesses can be of use: not those behind the last token, which the verifying pass
-- draws, nor more rows than a pass may be asked for.
function speculation.room(opt, seq, n)
  local n_left = opt.max_tokens - (#seq - seq.n_prompt)
  return math.min(n, n_left - 1, opt.max_rows - 1)
end

-- How many to guess next, at most `most`, when n were wanted and n_right of n_made guesses were
-- right: one more than were right; twice as many as were wanted if all were.
function speculation.pace(n, n_made, n_right, most)
  if n_made == 0 then return n end
  return math.min(most, n_right < n_made and n_right + 1 or 2 * n)
end

-- Drops from the cache all but the first n ids, which are known to be right.
function speculation.rewind(kv, n)
  if #kv > n then kv:truncate(n) end
end

-- The ids of `seq` that the cache does not hold.
function speculation.rest(kv, seq)
  return table.move(seq.ids, #kv + 1, #seq, 1, {})
end

-- seq: the text so far; ahead: a fork of it with guesses appended; draw(logits, seqs) → ids. The
-- cache holds the beginning of seq, and what earlier passes fed of wrong guesses. One pass over the
-- rest of seq and the guesses, then a draw from each row until one differs from the guess: that one
-- is right and ends the step. Draws are appended to seq and emitted. Returns whether the text is
-- over.
function speculation.verify(model, kv, seq, ahead, draw, emit)
  speculation.rewind(kv, #seq - 1)
  local guesses, n = ahead.ids, #ahead - #seq
  local rows = model:forward(kv, speculation.rest(kv, ahead), {rows = n + 1})
  for i = 1, n + 1 do
    local id = draw(rows:row(i), {seq}):item()
    seq:push(id)
    if emit(id) then return true end
    if id ~= guesses[#seq] then break end
  end
  return false
end

-- ---- several guesses at once ----

local Tree = {}
Tree.__index = Tree

-- A tree of guesses behind the last id of seq, which is its node 1.
function speculation.tree(seq)
  return setmetatable({ids = {seq.ids[#seq]}, parents = {0}, children = {{}}}, Tree)
end

-- The node of the guess `id` behind a node.
function Tree:add(node, id)
  local children = self.children[node]
  if not children[id] then
    children[id] = #self.ids + 1
    table.insert(self.ids, id)
    table.insert(self.parents, node)
    table.insert(self.children, {})
  end
  return children[id]
end

-- As verify, for a tree; the cache holds all of seq but its last id, before and after. Returns also
-- the logits, a row for each node.
function speculation.verify_tree(model, kv, seq, tree, draw, emit)
  local before, node, path = #kv, 1, {}
  local rows = model:forward(kv, tree.ids, {rows = "all", parents = tree.parents})
  repeat
    table.insert(path, before + node)
    local id = draw(rows:row(node), {seq}):item()
    seq:push(id)
    if emit(id) then return true, rows end
    node = tree.children[node][id]
  until not node
  kv:keep(path)
  return false, rows
end

return speculation
