-- Texts at which a repetition ends (DRY's sequence breakers), found in the texts of ids.

local NONE = {
  reach = function() return math.huge end,
  has = function() return false end,
}

local function contains(piece, texts)
  for _, text in ipairs(texts) do
    if piece:find(text, 1, true) then return true end
  end
  return false
end

-- The last byte of the occurrences that begin in the first `n` bytes of a text; 0: there are none.
local function find_end(tail, n, texts)
  local last = 0
  for _, text in ipairs(texts) do
    local at = tail:find(text, 1, true)
    while at and at <= n do
      last = math.max(last, at + #text - 1)
      at = tail:find(text, at + 1, true)
    end
  end
  return last
end

-- A function(logits) that gives {reach(ids, first), has(id)}: how many ids, of ids[first] and
-- later, stand behind the last breaker (math.huge: there is none), and whether the text of an id
-- holds one. Without a model, or for logits of another vocabulary, ids have no texts, and there are
-- no breakers.
return function(model, texts)
  local longest, pieces, breaks = 0, {}, {}
  for _, text in ipairs(texts) do longest = math.max(longest, #text) end

  local function piece(id)
    local text = pieces[id]
    if not text then
      text = model:token(id)
      pieces[id], breaks[id] = text, contains(text, texts)
    end
    return text
  end

  local function has(id)
    piece(id)
    return breaks[id]
  end

  -- A breaker may be spelled by several ids: it counts where its last byte is.
  local function reach(ids, first)
    local tail = ""
    for i = #ids, first, -1 do
      local text = piece(ids[i])
      tail = text .. tail:sub(1, longest - 1)
      local last, at = find_end(tail, #text, texts), i
      if last > 0 then
        while last > #piece(ids[at]) do
          last, at = last - #piece(ids[at]), at + 1
        end
        return #ids - at
      end
    end
    return math.huge
  end

  local some = {reach = reach, has = has}
  return function(logits)
    if longest == 0 or not model or logits.n_columns ~= model.vocab_size then return NONE end
    return some
  end
end
