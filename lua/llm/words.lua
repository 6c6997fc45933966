-- Texts that must appear in an output, token by token: what of them is still to come. A text may be
-- written with a space before it or without; each way is a list of ids of its own. A state never
-- changes: one more id makes another.

local fail = require "llm.fail"

local State = {}
State.__index = State

-- A place: the first `at` ids of a way to write a word are the end of the output. A word that is
-- not met has a place with `at` = 0 for each way always. word.n: length of its shortest way; total:
-- sum of those of the words not met.
local function new_state(places, total)
  local saved = 0
  for _, place in ipairs(places) do
    saved = math.max(saved, place.word.n - (#place.ids - place.at))
  end
  return setmetatable({places = places, total = total, left = total - saved}, State)
end

-- texts: a list; room: ids that may be made. Returns the state of an empty output, and the ids that
-- occur in the words, once each.
local function start(model, texts, room)
  local places, total, ids, known = {}, 0, {}, {}
  for _, text in ipairs(texts) do
    if text == "" then fail.raise("input", "a word that must appear is empty") end
    local word = {n = math.huge}
    for _, written in ipairs {" " .. text, text} do
      local way = model:encode(written, {add_special = false})
      word.n = math.min(word.n, #way)
      places[#places + 1] = {word = word, ids = way, at = 0}
      for _, id in ipairs(way) do
        if not known[id] then ids[#ids + 1], known[id] = id, true end
      end
    end
    total = total + word.n
  end
  if total > room then
    fail.raise("input", "the words take %d tokens, at most %d may be made", total, room)
  end
  return new_state(places, total), ids
end

-- The state after one more id, or nil if meeting all words would take more than `room` ids after
-- it. Places that the id does not continue are lost; a word that it completes is met for good.
-- `left`: how many more ids suffice to meet all words; 0: all are met.
function State:after(id, room)
  local places, total, met = {}, self.total, {}
  for _, place in ipairs(self.places) do
    local word, at = place.word, place.at + 1
    if at == #place.ids and place.ids[at] == id and not met[word] then
      met[word], total = true, total - word.n
    end
  end
  for _, place in ipairs(self.places) do
    local word, ids, at = place.word, place.ids, place.at + 1
    if not met[word] and at == 1 then places[#places + 1] = place end
    if not met[word] and ids[at] == id then
      places[#places + 1] = {word = word, ids = ids, at = at}
    end
  end
  local state = new_state(places, total)
  return state.left <= room and state or nil
end

return start
