-- Where the chunk of a strategy runs: reading a global falls through to the real ones, writing one
-- raises, and the standard libraries are copies, so that no job sees what another left.
-- math.random draws from the job's seed.

local llm = require "llm"

local sandbox = {}

local RANDOM_STREAM = 1 << 40 -- of the job's seed; sequences use small ones

local function seeded_math(seed)
  local rng, position
  local function reseed(x)
    rng, position = llm.rng(math.tointeger(x) or 0):fork(RANDOM_STREAM), 0
  end
  reseed(seed)
  local function random(low, high)
    position = position + 1
    local u = rng:at(position):uniform()
    if not low then return u end
    if not high then low, high = 1, low end
    low, high = math.tointeger(low), math.tointeger(high)
    if not low or not high or low > high then error("interval is empty", 2) end
    return math.min(high, low + math.floor(u * (high - low + 1)))
  end
  local copy = {}
  for k, v in pairs(math) do copy[k] = v end
  copy.random, copy.randomseed = random, function(x) reseed(x or 0) end
  return copy
end

-- Standard output is for texts and results.
local function print_to_stderr(...)
  local parts = table.pack(...)
  for i = 1, parts.n do parts[i] = tostring(parts[i]) end
  io.stderr:write(table.concat(parts, "\t"), "\n")
end

local LIBRARIES = {"coroutine", "debug", "io", "os", "string", "table", "utf8"}

local function copy_library(name)
  local copy = {}
  for k, v in pairs(_G[name]) do copy[k] = v end
  return copy
end

local function refuse(name)
  return function()
    error(("%s in a strategy: it would reach other jobs"):format(name), 2)
  end
end

-- A fresh environment for one job.
function sandbox.environment(seed)
  local env = {}
  rawset(env, "_G", env)
  rawset(env, "math", seeded_math(seed))
  rawset(env, "print", print_to_stderr)
  for _, name in ipairs(LIBRARIES) do rawset(env, name, copy_library(name)) end
  env.os.exit, env.debug.sethook = refuse "os.exit", refuse "debug.sethook"
  return setmetatable(env, {
    __index = _G,
    __newindex = function(_, name)
      error(("global '%s' written in a strategy: make it local, or keep it in a module")
        :format(tostring(name)), 2)
    end,
    __metatable = false,
  })
end

return sandbox
