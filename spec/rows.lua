-- What the specs of samplers share: sequences, and rows as lists.
local assert = require "luassert"
local llm = require "llm"

local M = {}

function M.sequence(prompt, history)
  local seq = llm.seq(prompt)
  for _, id in ipairs(history or {}) do seq:push(id) end
  return seq
end

function M.near(expected, got)
  assert.equal(#expected, #got)
  for i, x in ipairs(expected) do
    local ok = x == got[i] or math.abs(x - got[i]) <= 1e-5 * math.max(1, math.abs(x))
    assert(ok, ("entry %d: %.9g, expected %.9g"):format(i, got[i], x))
  end
end

-- The ids of finite entries.
function M.kept(values)
  local ids = {}
  for i, x in ipairs(values) do if x > -math.huge then ids[#ids + 1] = i - 1 end end
  return ids
end

function M.flat(tensor)
  return tensor:lists()[1]
end

return M
