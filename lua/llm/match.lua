-- How the ids of a sequence repeat each other.

local match = {}

-- Whether a sequence ends with these ids. Ids are read only where there are some.
function match.ends_with(seq, ids)
  local n = #ids
  if n == 0 then return true end
  local seen = n <= #seq and seq.ids
  for i = n, 1, -1 do
    if not seen or seen[#seen - n + i] ~= ids[i] then return false end
  end
  return true
end

-- The ids that stand after an earlier occurrence of the last n ids (n = 0: all ids), in their
-- order, repeatedly if they are there repeatedly.
function match.followers(ids, n)
  local out, last = {}, #ids
  if n == 0 then return table.move(ids, 1, last, 1, out) end
  local final = ids[last]
  for at = n, last - 1 do
    if ids[at] == final then
      local i = 1
      while i < n and ids[at - i] == ids[last - i] do i = i + 1 end
      if i >= n then out[#out + 1] = ids[at + 1] end
    end
  end
  return out
end

-- By id: how many ids (at most `reach`) before one of its places are those at the end of the list,
-- the largest number of all places, where it is at least `least`. Only ids[first] and later count.
-- This is the Z function (Gusfield 1997, "Algorithms on strings, trees, and sequences", section
-- 1.4) of the list read backwards: work in proportion to its length.
function match.repeats(ids, first, reach, least)
  local last, longest = #ids, {}
  local n, final = last - first + 1, ids[last]
  local z, from, to = {}, 0, 0 -- the match that reaches furthest: places from … to − 1 from the end
  for k = 1, n - 1 do
    if k < to or least == 0 or ids[last - k] == final then
      local length = k < to and math.min(z[k - from] or 0, to - k) or 0
      while k + length < n and ids[last - length] == ids[last - k - length] do
        length = length + 1
      end
      if k + length > to then from, to = k, k + length end
      z[k] = length
      local id, capped = ids[last - k + 1], math.min(length, reach)
      if capped >= least and capped > (longest[id] or -1) then longest[id] = capped end
    end
  end
  return longest
end

return match
