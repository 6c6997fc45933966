-- Text as it is made: bytes go to the sink once they are sure to stay, in whole characters.

local stop = require "llm.stop"
local text = require "llm.text"

local Stream = {}
Stream.__index = Stream

-- stops: a list of strings; sink: function(bytes), or nil.
local function new(model, prompt, stops, sink)
  return setmetatable({
    piece_of = text.continuation(model, prompt),
    stops = stops, sink = sink,
    given = {}, -- pieces that the sink has had
    held = "",  -- what may yet be cut, or is half a character
    n_skip = 0,
  }, Stream)
end

function Stream:give(bytes)
  if bytes == "" then return end
  self.given[#self.given + 1] = bytes
  if self.sink then self.sink(bytes) end
end

-- Adds an id; `skip` bytes of what it shows are not shown. Returns true if a stop string is
-- complete: the text then ends before its first byte.
function Stream:push(id, skip)
  self.n_skip = self.n_skip + (skip or 0)
  local piece = self.piece_of(id)
  local held = self.held .. piece:sub(self.n_skip + 1)
  self.n_skip = math.max(0, self.n_skip - #piece)
  local first = stop.find(held, self.stops)
  if first then
    self.held = ""
    self:give(held:sub(1, first - 1))
    return true
  end
  local n = #held - stop.pending(held, self.stops)
  n = n - text.incomplete(held:sub(1, n))
  self.held = held:sub(n + 1)
  self:give(held:sub(1, n))
  return false
end

-- No more ids: what is held back is text after all.
function Stream:flush()
  local held = self.held
  self.held = ""
  self:give(held)
end

-- All text so far, with what is held back.
function Stream:text()
  return table.concat(self.given) .. self.held
end

return new
