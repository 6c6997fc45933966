-- How far many jobs are: a bar on a terminal, else now and then a line.

local llm = require "llm"
local sys = require "llm.sys"

local Progress = {}
Progress.__index = Progress

local WIDTH = 24
local PERIOD, LINE_PERIOD = 0.2, 60 -- s between two bars, two lines

-- total: how many prompts there are (nil: not known); n_done: of them, already. draw: false where
-- nothing may be shown.
local function new(total, n_done, draw)
  local now = sys.clock()
  return setmetatable({total = total, n_done = n_done, n_before = n_done, start = now,
    n_tokens = 0, n_reused = 0, rows = llm.stats().forward_rows, last = now, rate = nil,
    is_bar = draw and sys.isatty(2), is_wanted = draw, is_drawn = false}, Progress)
end

local function duration(s)
  if s < 90 then return ("%.0f s"):format(s) end
  if s < 5400 then return ("%.0f min"):format(s / 60) end
  return ("%.1f h"):format(s / 3600)
end

-- A result has come.
function Progress:add(result)
  self.n_done = self.n_done + 1
  if result.counts then self.n_tokens = self.n_tokens + result.counts.output end
  if result.timings then self.n_reused = self.n_reused + (result.timings.prefix_tokens or 0) end
end

-- "37/100, 512 tokens/s, 2 min left". Tokens are what the model was fed since the last time.
function Progress:text(now)
  local rows = llm.stats().forward_rows
  local rate = (rows - self.rows) / math.max(now - self.last, 1e-9)
  self.rate = self.rate and 0.8 * self.rate + 0.2 * rate or rate
  self.rows, self.last = rows, now
  local parts = {self.total and ("%d/%d"):format(self.n_done, self.total) or self.n_done .. " done",
    ("%.0f tokens/s"):format(self.rate)}
  local n_new = self.n_done - self.n_before
  if self.total and n_new > 0 then
    local left = (now - self.start) / n_new * (self.total - self.n_done)
    parts[#parts + 1] = duration(left) .. " left"
  end
  return table.concat(parts, ", ")
end

function Progress:tick()
  local now = sys.clock()
  if not self.is_wanted or now - self.last < (self.is_bar and PERIOD or LINE_PERIOD) then return end
  local text = self:text(now)
  if not self.is_bar then
    io.stderr:write("llmlua: ", text, "\n")
    return
  end
  local bar = ""
  if self.total and self.total > 0 then
    local n = math.min(WIDTH, self.n_done * WIDTH // self.total)
    bar = ("[%s%s] "):format(("#"):rep(n), ("."):rep(WIDTH - n))
  end
  io.stderr:write("\r", bar, text, "\27[K")
  self.is_drawn = true
end

function Progress:clear()
  if self.is_drawn then io.stderr:write("\r\27[K") end
  self.is_drawn = false
end

-- "37 prompts in 12.3 s, 640 tokens at 52.0 tokens/s, 128 prompt tokens re-used"
function Progress:figures()
  local s = sys.clock() - self.start
  return ("%d prompts in %.1f s, %d tokens at %.1f tokens/s, %d prompt tokens re-used, "
    .. "peak memory %.0f MB"):format(self.n_done - self.n_before, s, self.n_tokens,
    self.n_tokens / math.max(s, 1e-9), self.n_reused, sys.peak_rss() / 1e6)
end

return new
