-- Finds the watermark that the sampler `watermark` leaves: counts the ids of a text that are on the
-- green list of those before them, and says how far that is above chance (Kirchenbauer et al. 2023,
-- "A watermark for large language models", equation 3). The text must be split into the same ids as
-- when it was made: with the same model, and as a whole. An id after the same context counts once,
-- however often it stands there, for its copies say nothing new.
local llm = require "llm"
local greenlist = require "llm.greenlist"
local json = require "llm.json"

local ORDER = {"tokens", "scored", "green", "fraction", "z", "p_value"}

-- Of each id that has a context, its id and hash, without repetitions unless they are asked for.
local function collect(ids, opt)
  local found, seen = {ids = {}, a = {}, b = {}}, {}
  for i = opt.width + 1, #ids do
    local name = table.concat(ids, " ", i - opt.width, i)
    if opt.repeats or not seen[name] then
      seen[name] = true
      found.ids[#found.ids + 1] = ids[i]
      found.a[#found.ids], found.b[#found.ids] = greenlist.hash(opt.key, ids, i - 1, opt.width)
    end
  end
  return found
end

-- The probability that at least k of n fall into a part p by chance: the tail of the binomial
-- distribution, summed from its largest term on.
local function binomial_tail(n, k, p)
  local logs, log, most = {}, 0, -math.huge -- log: of n choose i
  for i = 0, n do
    if i > 0 then log = log + math.log((n - i + 1) / i) end
    if i >= k then
      logs[#logs + 1] = log + i * math.log(p) + (n - i) * math.log(1 - p)
      most = math.max(most, logs[#logs])
    end
  end
  local sum = 0
  for _, x in ipairs(logs) do sum = sum + math.exp(x - most) end
  return math.min(1, math.exp(most) * sum)
end

return {
  about = "whether a text carries the watermark of the sampler `watermark`",
  prompt = "text to examine",
  common = {"prompt", "engine", "json", "quiet", "verbose", "version"},
  options = {
    gamma = {default = 0.25, min = 0.001, max = 0.999, help = "as in the sampler"},
    key = {default = 15485863, help = "as in the sampler"},
    width = {default = 1, min = 0, help = "as in the sampler"},
    repeats = {default = false, help = "count an id after the same context each time"},
  },
  main = function(_, opt)
    local ids, gamma = opt.prompt_ids, opt.gamma
    local found = collect(ids, opt)
    local n = #found.ids
    if n == 0 then
      error(llm.error("input", ("text too short: %d of %d tokens"):format(#ids, opt.width + 1)))
    end
    local tests = greenlist.test(llm.tensor(found.ids, "i32"), found.a, found.b, gamma)
    local green = math.tointeger(tests:t():sum():item())
    local z = (green - gamma * n) / math.sqrt(n * gamma * (1 - gamma))
    local p_value = binomial_tail(n, green, gamma)
    if opt.json then
      io.write(json.encode({tokens = #ids, scored = n, green = green, fraction = green / n, z = z,
        p_value = p_value}, ORDER), "\n")
    else
      io.write(("%d tokens, %d scored, %d green (%.1f %%, %.1f %% by chance), z %.2f, p %.3g\n")
        :format(#ids, n, green, 100 * green / n, 100 * gamma, z, p_value))
    end
  end,
}
