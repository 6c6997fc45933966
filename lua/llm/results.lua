-- The file of results: a line for each prompt, written whole or not at all, by one process. Beside
-- it stands FILE.state, which says what makes the lines; it is locked while somebody writes. A run
-- that was ended at any moment leaves a file that the next one continues.

local json = require "llm.json"
local lines = require "llm.lines"
local sys = require "llm.sys"

local results = {}

-- ---- a set of integers ----

local Set = {}
Set.__index = Set

function results.set()
  return setmetatable({words = {}, n = 0}, Set)
end

function Set:has(i)
  return (self.words[i >> 6] or 0) >> (i & 63) & 1 == 1
end

-- Returns whether it is new.
function Set:add(i)
  if self:has(i) then return false end
  self.words[i >> 6] = (self.words[i >> 6] or 0) | 1 << (i & 63)
  self.n = self.n + 1
  return true
end

-- ---- lines that are there ----

-- The index of a result line and whether it failed; nil if it is none. The encoder writes the index
-- first, and a quote inside a text never bare.
function results.read_line(line)
  local index = line:match "^{\"index\":(%d+)[,}]"
  if not index or line:sub(-1) ~= "}" then return nil end
  return math.tointeger(index), line:find("\"error\":{\"kind\":", 1, true) ~= nil
end

-- Calls each(line, index, failed, offset) for each line of the file. Returns where the whole lines
-- end; or nil, message.
function results.scan(file, name, each)
  local ok, wrong = file:seek(0)
  if not ok then return nil, ("%s: %s"):format(name, wrong) end
  local reader = lines.reader(file)
  while true do
    local line, message = reader:next()
    if message then return nil, ("%s: %s"):format(name, message) end
    if not line or not reader.is_whole then return reader.offset end
    local index, failed = results.read_line(line)
    if not index then
      return nil, ("%s: line %d is no result line"):format(name, reader.number)
    end
    local told
    told, message = each(line, index, failed, reader.offset)
    if told == nil and message then return nil, message end
  end
end

-- Lets write(append) fill a temporary file that then takes the place of `path`. Returns true, or
-- nil, message.
function results.replace(path, write)
  local temporary = path .. ".tmp"
  local file <close>, message = sys.open(temporary, "new")
  if not file then return nil, ("%s: %s"):format(temporary, message) end
  local ok
  ok, message = write(function(line)
    local written, wrong = file:append(line .. "\n")
    return written, wrong and ("%s: %s"):format(temporary, wrong)
  end)
  if ok then ok, message = file:sync() end
  if ok then ok, message = os.rename(temporary, path) end
  if ok then return true end
  os.remove(temporary)
  return nil, message
end

-- Writes the lines of files to `path`, in the order of their indexes. sources: a list of {file,
-- name}. Returns true, or nil, message.
function results.sorted(sources, path)
  local entries = {}
  for _, source in ipairs(sources) do
    local ok, message = results.scan(source.file, source.name, function(line, index, _, offset)
      entries[#entries + 1] = {index, source.file, offset, #line}
      return true
    end)
    if not ok then return nil, message end
  end
  table.sort(entries, function(a, b) return a[1] < b[1] end)
  return results.replace(path, function(append)
    for _, entry in ipairs(entries) do
      local _, file, offset, n = table.unpack(entry)
      local ok, message = file:seek(offset)
      local parts = {}
      while ok and n > 0 do
        local piece
        piece, message = file:read(n)
        ok = piece and piece ~= ""
        if ok then
          parts[#parts + 1], n = piece, n - #piece
        end
      end
      if ok then ok, message = append(table.concat(parts)) end
      if not ok then return nil, message or "a line has gone" end
    end
    return true
  end)
end

-- ---- what makes the lines ----

local function read_state(file)
  local size = file:size()
  if not size or size == 0 or not file:seek(0) then return nil end
  local text = file:read(size)
  if not text or text:sub(-1) ~= "\n" then return nil end
  local state = json.decode(text)
  return type(state) == "table" and state ~= json.null and state or nil
end

-- The state beside a file of results, or nil.
function results.state(path)
  local file <close> = sys.open(path .. ".state")
  return file and read_state(file)
end

local function write_state(file, state)
  local ok, message = file:truncate(0)
  if ok then ok, message = file:append(json.encode(state) .. "\n") end
  if ok then ok, message = file:sync() end
  return ok, message
end

local function show(value)
  if value == nil or value == json.null then return "none" end
  return type(value) == "table" and json.encode(value) or tostring(value)
end

-- What differs, in words, or nil.
local function find_difference(old, new)
  for _, key in ipairs {"version", "llmlua", "model", "device", "script", "input", "shard"} do
    if show(old[key]) ~= show(new[key]) then
      return ("another %s: %s, now %s"):format(key, show(old[key]), show(new[key]))
    end
  end
  local a, b = type(old.options) == "table" and old.options or {}, new.options
  local names = {}
  for name in pairs(a) do names[#names + 1] = name end
  for name in pairs(b) do
    if a[name] == nil then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if show(a[name]) ~= show(b[name]) then
      return ("another %s: %s, now %s"):format(name, show(a[name]), show(b[name]))
    end
  end
end

-- ---- the file ----

-- The path of a file of results without links, and the files that are written with it; or nil,
-- message.
function results.files(path)
  local folder = path:match "^(.*)/[^/]*$"
  if folder and folder ~= "" and sys.path_kind(folder) ~= "folder" then
    return nil, ("%s: there is no folder %s"):format(path, folder)
  end
  if sys.path_kind(path) == "other" then return path, {path} end -- it may have no path of its own
  local real, message = sys.real_path(path)
  if not real then return nil, ("%s is a link that leads nowhere: %s"):format(path, message) end
  return real, {real, real .. ".state", real .. ".tmp"}
end

local Results = {}
Results.__index = Results

-- Drops failed lines. Returns true, or nil, message.
local function drop_errors(self)
  local n, done = 0, results.set()
  local ok, message = results.replace(self.path, function(append)
    return results.scan(self.file, self.path, function(line, index, failed)
      if failed then
        n = n + 1
        return true
      end
      done:add(index)
      return append(line)
    end)
  end)
  if not ok then return nil, message end
  self.file:close()
  self.file, message = sys.open(self.path, "append")
  if not self.file then return nil, ("%s: %s"):format(self.path, message) end
  self.n_dropped, self.done, self.n_failed = n, done, 0
  return true
end

-- Reads what is there, of prompts up to `most`; a line that was not finished is cut off.
local function take_up(self, most)
  local size, message = self.file:size()
  if not size then return nil, message end
  local whole
  whole, message = results.scan(self.file, self.path, function(_, index, failed)
    if index < 1 or index > most then
      return nil, ("%s is not of this input: it has a line of prompt %d, the input %d prompts")
        :format(self.path, index, most)
    end
    if self.done:add(index) and failed then self.n_failed = self.n_failed + 1 end
    return true
  end)
  if whole and whole < size then whole, message = self.file:truncate(whole) end
  return whole, message
end

local function begin(self, spec)
  local state = read_state(self.side)
  local kind = sys.path_kind(self.path)
  local there = io.open(self.path, "rb")
  local is_filled = there ~= nil and there:read(0) ~= nil
  if there then there:close() end
  if is_filled and not spec.overwrite then
    local wrong = not state and "nothing says what made it" or find_difference(state, spec.state)
    if not wrong and spec.is_once then
      wrong = "what standard input held cannot be read again"
    end
    if wrong then
      return nil, ("%s is there: %s (--overwrite begins anew)"):format(self.path, wrong)
    end
  end
  local message
  if kind and (spec.overwrite or not is_filled) then
    self.file, message = sys.open(self.path, "new")
    if not self.file then return nil, ("%s: %s"):format(self.path, message) end
    self.file:close()
  end
  if not is_filled or spec.overwrite then
    local ok
    ok, message = write_state(self.side, spec.state)
    if not ok then return nil, ("%s.state: %s"):format(self.path, message) end
  end
  self.file, message = sys.open(self.path, "append")
  if not self.file then return nil, ("%s: %s"):format(self.path, message) end
  return true
end

-- spec: {path, state (what makes the lines), overwrite, retry_errors, is_once (it cannot be
-- continued), n_prompts (of the input, or nil)}. Returns the file, with `done` (a set of indexes),
-- n_failed, n_dropped; or nil, message.
function results.open(spec)
  local path, message = results.files(spec.path)
  if not path then return nil, message end
  local self = setmetatable({path = path, done = results.set(), n_failed = 0, n_dropped = 0},
    Results)
  local kind = sys.path_kind(path)
  if kind == "folder" then return nil, ("%s is a folder"):format(path) end
  if kind == "other" then -- a pipe, a device: nothing to continue; a pipe waits for its reader
    self.file, message = sys.open(path, "write")
    if not self.file then return nil, ("%s: %s"):format(path, message) end
    return self
  end
  local is_new = not sys.path_kind(path .. ".state")
  self.side, message = sys.open(path .. ".state", "append")
  if not self.side then return nil, ("%s.state: %s"):format(path, message) end
  local locked = self.side:lock()
  if locked == false then
    return nil, ("%s is being written by another process"):format(path)
  end
  os.remove(path .. ".tmp") -- of a run that was ended while it wrote it
  local ok
  ok, message = begin(self, spec)
  if ok then ok, message = take_up(self, spec.n_prompts or math.maxinteger) end
  if ok and spec.retry_errors and self.n_failed > 0 then ok, message = drop_errors(self) end
  if ok then return self end
  if is_new then os.remove(path .. ".state") end -- made here, for nothing
  self:close()
  return nil, message
end

-- Appends a line. Returns true; or nil, message: then it is not there.
function Results:append(line)
  local ok, message = self.file:append(line .. "\n")
  return ok, message and ("%s: %s"):format(self.path, message)
end

-- Puts the lines into order, if they are not. Returns true, or nil, message.
function Results:sort()
  if not self.side then return true end
  local last, is_sorted = 0, true
  local ok, message = results.scan(self.file, self.path, function(_, index)
    is_sorted, last = is_sorted and index > last, index
    return true
  end)
  if not ok or is_sorted then return ok, message end
  return results.sorted({{file = self.file, name = self.path}}, self.path)
end

function Results:close()
  if self.file then self.file:close() end
  if self.side then self.side:close() end
end

return results
