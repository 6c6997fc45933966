-- UTF-8 of generated text: what is incomplete, what is broken, and the text that ids add to a
-- prompt.

local text = {}

local REPLACEMENT = "\u{FFFD}"

-- Bytes that a sequence with this first byte has, and the range of its second (Unicode, table 3-7).
local function shape(lead)
  if lead >= 0xC2 and lead <= 0xDF then return 2, 0x80, 0xBF end
  if lead == 0xE0 then return 3, 0xA0, 0xBF end
  if lead == 0xED then return 3, 0x80, 0x9F end
  if lead >= 0xE1 and lead <= 0xEF then return 3, 0x80, 0xBF end
  if lead == 0xF0 then return 4, 0x90, 0xBF end
  if lead >= 0xF1 and lead <= 0xF3 then return 4, 0x80, 0xBF end
  if lead == 0xF4 then return 4, 0x80, 0x8F end
end

-- How many bytes from `at` are a well-formed beginning of one sequence, and whether it is whole.
local function measure(s, at)
  local lead = s:byte(at)
  if lead < 0x80 then return 1, true end
  local n, low, high = shape(lead)
  if not n then return 0, false end
  for i = 1, n - 1 do
    local b = s:byte(at + i)
    if not b or b < low or b > high then return i, false end
    low, high = 0x80, 0xBF
  end
  return n, true
end

-- The number of bytes at the end of s that begin a sequence which is not complete yet.
function text.incomplete(s)
  for back = 1, math.min(3, #s) do
    local at = #s - back + 1
    if s:byte(at) >= 0xC0 then
      local n, whole = measure(s, at)
      return (not whole and n == back) and back or 0
    end
  end
  return 0
end

-- s with U+FFFD for each ill-formed part (the longest beginning of a sequence, else one byte).
function text.sanitize(s)
  local from, out = 1, {}
  while true do
    local ok, bad = utf8.len(s, from)
    if ok then
      out[#out + 1] = s:sub(from)
      return table.concat(out)
    end
    out[#out + 1] = s:sub(from, bad - 1)
    out[#out + 1] = REPLACEMENT
    from = bad + math.max(1, (measure(s, bad)))
    if from > #s then return table.concat(out) end
  end
end

-- Returns a function that gives the bytes which the next id adds to the text of prompt .. ids. Only
-- the last ids that show as text are decoded again: what stands before them changes nothing.
function text.continuation(model, prompt)
  local plain = {render_special = false}
  local tail, tail_text = {}, ""
  for i = #prompt, 1, -1 do
    table.insert(tail, 1, prompt[i])
    tail_text = model:decode(tail, plain)
    if tail_text ~= "" then break end
  end
  return function(id)
    tail[#tail + 1] = id
    local whole = model:decode(tail, plain)
    local piece = whole:sub(#tail_text + 1)
    if piece == "" then
      tail_text = whole
    else
      tail = {id}
      tail_text = model:decode(tail, plain)
    end
    return piece
  end
end

return text
