-- Files read line by line, of any size, and what a line of prompts asks for.

local json = require "llm.json"
local sys = require "llm.sys"

local lines = {}

local PIECE = 65536
local MOST_BYTES = 16 << 20 -- of a line of prompts
local BOM = "\u{FEFF}"

-- ---- lines ----

local Reader = {}
Reader.__index = Reader

-- file: of sys.open; most: bytes that a line may have (nil: any number).
function lines.reader(file, most)
  return setmetatable({file = file, most = most, held = "", from = 1, number = 0, offset = 0,
    is_over = false}, Reader)
end

-- Moves bytes of the line into `parts`; what is too much is only counted. Returns how many.
function Reader:keep(parts, n_before, first, last)
  if not self.most or n_before + last - first + 1 <= self.most then
    parts[#parts + 1] = self.held:sub(first, last)
  end
  return n_before + last - first + 1
end

-- The next line without its "\n"; or nil at the end; or nil, message, when it cannot be read; or
-- false and its length when it is too long. `number` and `offset` are then its own, `is_whole` says
-- whether a "\n" ended it.
function Reader:next()
  local parts, n = {}, 0
  self.offset = self.stop or 0
  while true do
    local at = self.held:find("\n", self.from, true)
    n = self:keep(parts, n, self.from, at and at - 1 or #self.held)
    self.from = at and at + 1 or #self.held + 1
    self.is_whole = at ~= nil
    if at or self.is_over then break end
    local piece, message = self.file:read(PIECE)
    if not piece then return nil, message end
    self.held, self.from, self.is_over = piece, 1, piece == ""
  end
  if n == 0 and not self.is_whole then return nil end
  self.number = self.number + 1
  self.stop = self.offset + n + (self.is_whole and 1 or 0)
  if self.most and n > self.most then return false, n end
  return table.concat(parts)
end

-- Whether there is a line, or the end, without waiting for it.
function Reader:is_ready()
  return self.is_over or self.held:find("\n", self.from, true) ~= nil or self.file:ready()
end

-- ---- prompts ----

local Prompts = {}
Prompts.__index = Prompts

local BY_NAME = {jsonl = "jsonl", ndjson = "jsonl", json = "jsonl", txt = "text"}

-- path: a file, or "-"; format: "auto", "jsonl" or "text". Returns the prompts, or nil, message.
function lines.prompts(path, format)
  local file, message
  if path == "-" then file = sys.open(0) else file, message = sys.open(path) end
  if not file then return nil, ("%s: %s"):format(path, message) end
  if path ~= "-" and sys.path_kind(path) == "folder" then
    return nil, ("%s is a folder"):format(path)
  end
  if format == "auto" then format = BY_NAME[path:match "%.(%w+)$"] end
  return setmetatable({reader = lines.reader(file, MOST_BYTES), format = format, index = 0,
    name = path == "-" and "standard input" or path}, Prompts)
end

-- The next line that is not blank, without line end and byte order mark. As Reader:next.
function Prompts:next_line()
  local reader = self.reader
  while true do
    local line, wrong = reader:next()
    if not line then return line, wrong end
    if reader.number == 1 and line:sub(1, #BOM) == BOM then line = line:sub(#BOM + 1) end
    if line:find "%S" then return (line:gsub("\r$", "")) end
  end
end

-- The first line that can be read tells the format, where nothing else did.
function Prompts:note_format(line)
  self.format = self.format or (line:find "^%s*{" and "jsonl" or "text")
end

local function read_object(line)
  local ok, bad = utf8.len(line)
  if not ok then return nil, ("no UTF-8 from byte %d on"):format(bad) end
  local value, message = json.decode(line)
  if value == nil then return nil, "not JSON: " .. message end
  local meta = getmetatable(value)
  if type(value) ~= "table" or value == json.null or meta and meta.__jsontype == "array" then
    return nil, "not a JSON object"
  end
  return value
end

-- Returns the number of the next prompt (blank lines are none) and what it asks for, as job.lua
-- takes it; the number, nil and a message where it cannot be read; nil at the end; or nil, nil and
-- a message when the file cannot be read any further.
function Prompts:next()
  local line, wrong = self:next_line()
  if line == nil then return nil, nil, wrong and ("%s: %s"):format(self.name, wrong) end
  self.index = self.index + 1
  local place = ("line %d: "):format(self.reader.number)
  if not line then
    return self.index, nil, ("%s%d bytes, a line may have %d"):format(place, wrong, MOST_BYTES)
  end
  self:note_format(line)
  if self.format == "text" then return self.index, {prompt = line} end
  local request, message = read_object(line)
  return self.index, request, not request and place .. message or nil
end

-- Passes over a prompt of another shard: it need not be read.
function Prompts:skip()
  local line, wrong = self:next_line()
  if line == nil then return false, wrong and ("%s: %s"):format(self.name, wrong) end
  self.index = self.index + 1
  if line then self:note_format(line) end
  return true
end

function Prompts:is_ready()
  return self.reader:is_ready()
end

-- Where the line of the last prompt stands, for messages.
function Prompts:place()
  return ("line %d: "):format(self.reader.number)
end

return lines
