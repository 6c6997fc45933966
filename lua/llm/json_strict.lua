-- What is no JSON in a line that dkjson took for some: comments, commas too many or too few,
-- control characters, halves of surrogate pairs, numbers in other writings.

-- Where a string ends, whose inside begins at `at`; or nil, message.
local function find_end(line, at)
  while true do
    at = line:find('[\0-\31"\\]', at)
    local c = at and line:sub(at, at)
    if c == '"' then return at end
    if c ~= "\\" then return nil, "a control character in a text" end
    local code = tonumber(line:match("^u(%x%x%x%x)", at + 1) or "", 16)
    if not code and not line:find('^["\\/bfnrt]', at + 1) then return nil, "no escape of JSON" end
    local is_half = code and code & 0xF800 == 0xD800
    if is_half and (code >= 0xDC00 or not line:find("^\\u[dD][c-fC-F]%x%x", at + 6)) then
      return nil, "half of a surrogate pair"
    end
    at = at + (is_half and 12 or code and 6 or 2)
  end
end

local WORDS = {["true"] = true, ["false"] = true, null = true}

local function is_value(word)
  if WORDS[word] then return true end
  local rest = word:gsub("^%-?%d+", ""):gsub("^%.%d+", ""):gsub("^[eE][+-]?%d+$", "")
  return rest == "" and word:find "^%-?%d" and not word:find "^%-?0%d"
end

-- The token at `at`: a sign, `"` for a text, "1" for any other value; and its last byte; or nil,
-- message.
local function read_token(line, at)
  local c = line:sub(at, at)
  if c == '"' then
    local last, message = find_end(line, at + 1)
    return last and c, last or message
  end
  local word = line:match("^[%w+.-]+", at)
  if not word then return c, at end
  if not is_value(word) then return nil, ("'%s' is no value"):format(word) end
  return "1", at + #word - 1
end

local CLOSES = {["{"] = "}", ["["] = "]"}

-- What may follow the token where `want` was to come; nil: it must not stand there. open: the ends
-- that are awaited, innermost last. What is wanted: "value", "value or ]", "key", "key or }", ":",
-- or ",", which is also the end.
local function follow(want, c, open)
  local wants_value, wants_key = want:find "^value" ~= nil, want:find "^key" ~= nil
  if wants_value and (c == '"' or c == "1") then return "," end
  if wants_key and c == '"' then return ":" end
  if want == ":" and c == ":" then return "value" end
  if want == "," and c == "," then return open[#open] == "}" and "key" or "value" end
  if wants_value and CLOSES[c] then
    open[#open + 1] = CLOSES[c]
    return c == "{" and "key or }" or "value or ]"
  end
  if c == open[#open] and (want == "," or want:sub(-1) == c) then
    open[#open] = nil
    return ","
  end
end

-- At the start of a list: past the whole numbers and their commas from `at` on, so that long lists
-- of ids take no time; nil if there are none.
local function skip_numbers(line, at)
  local run = line:match("^[%d, ]*", at):match "^%d.*,"
  if not run or run:find ", *," or run:find "%d +%d" or run:find "%f[%d]0%d" then return nil end
  return line:find("[^ \t\r\n]", at + #run)
end

-- Returns true; or nil, message.
return function(line)
  local open, want, at = {}, "value", line:find "[^ \t\r\n]"
  while at do
    local after = want == "value or ]" and skip_numbers(line, at)
    if after then at, want = after, "value" end
    local token, last = read_token(line, at)
    if not token then return nil, ("%s, byte %d"):format(last, at) end
    want = follow(want, token, open)
    if not want then return nil, ("unexpected '%s', byte %d"):format(line:sub(at, last), at) end
    at = line:find("[^ \t\r\n]", last + 1)
  end
  return true
end
