-- What scripts/sample.lua draws is distributed as the model says: chi-square tests of 20,000 draws.
local llm = require "llm"
local chain = require "llm.chain"
local scripts = require "llm.scripts"

local N = 20000

-- How often the script draws each id from one row of logits, with a chain: N steps of one text of
-- a model that always says the same.
local function count_draws(row, stages, seed)
  local counts, n, own = {}, 0, llm.seq {0}
  local model = {cache = function() return {} end, forward = function() return row end}
  local opt = {sampler = chain.sampler(assert(chain.build(stages)), own, seed)}
  scripts.load(assert(scripts.find "sample"))().decode(model, {0}, opt, function(id)
    id = id:item()
    own:push(id)
    counts[id], n = (counts[id] or 0) + 1, n + 1
    return n == N and "length" or nil
  end)
  return counts
end

-- The deviation of counts from probabilities (by id) in standard deviations: the chi-square
-- statistic over all bins where 5 or more are expected, the others as one, by the transformation of
-- Wilson and Hilferty (1931).
local function deviation(counts, probabilities)
  local sum, n_bins, rest, rest_count = 0, 0, 0, 0
  local function bin(expected, count)
    sum, n_bins = sum + (count - expected) ^ 2 / expected, n_bins + 1
  end
  for at, p in ipairs(probabilities) do
    local expected, count = N * p, counts[at - 1] or 0
    if expected >= 5 then
      bin(expected, count)
    else
      rest, rest_count = rest + expected, rest_count + count
    end
  end
  if rest >= 5 then bin(rest, rest_count) end
  local degrees = n_bins - 1
  local c = 2 / (9 * degrees)
  return ((sum / degrees) ^ (1 / 3) - (1 - c)) / c ^ 0.5
end

-- softmax in plain Lua, of the entries that `keeps` says yes to.
local function softmax(values, t, keeps)
  local p, total, most = {}, 0, -math.huge
  for _, x in ipairs(values) do most = math.max(most, x) end
  for i, x in ipairs(values) do
    p[i] = (not keeps or keeps(x)) and math.exp((x - most) / t) or 0
    total = total + p[i]
  end
  for i in ipairs(p) do p[i] = p[i] / total end
  return p
end

describe("sample", function()
  local row, values

  setup(function()
    -- not the helper's, whose collections after each call would take hours here
    local model <close> = assert(llm.load(nil, {threads = 1}) or llm.load "models/builtin.gguf")
    row = model:forward(model:cache(), model:encode "And the LORD said unto the")
    values = row:tolist()
  end)

  it("draws 20,000 times as softmax of the logits says, for each of three seeds", function()
    local p = softmax(values, 1)
    for seed = 0, 2 do
      local z = deviation(count_draws(row, {}, seed), p)
      assert(math.abs(z) < 3, z)
    end
  end)

  it("draws 20,000 times as the chain says", function()
    local sorted = table.move(values, 1, #values, 1, {})
    table.sort(sorted, function(a, b) return a > b end)
    local function keeps(x) return x >= sorted[40] end
    local stages = assert(chain.parse "top_k=40, temperature=1.5")
    local z = deviation(count_draws(row, stages, 7), softmax(values, 1.5, keeps))
    assert(math.abs(z) < 3, z)
  end)

  it("is told apart from a temperature of 0.9 or 1.1 by as many draws", function()
    local counts = count_draws(row, {}, 0)
    for _, t in ipairs {0.9, 1.1} do
      local z = deviation(counts, softmax(values, t))
      assert(z > 5, z)
    end
  end)

  it("draws the first token of a text so, over streams", function()
    local counts, opt = {}, {sampler = chain.sampler(assert(chain.build {}), llm.seq {0}, 3)}
    for first = 1, N, 500 do
      local seqs, ones = {}, {}
      for i = 1, 500 do
        seqs[i], ones[i] = llm.seq {0}, 1
        seqs[i].stream = first + i - 1
      end
      for _, id in ipairs(opt.sampler(row:rows(ones), seqs):tolist()) do
        counts[id] = (counts[id] or 0) + 1
      end
    end
    local z = deviation(counts, softmax(values, 1))
    assert(math.abs(z) < 3, z)
  end)

  it("draws the first token of a text so, over seeds", function()
    local counts = {}
    for seed = 1, N do
      local sampler = chain.sampler(function(logits) return logits end, llm.seq {0}, seed)
      local id = sampler(row):item()
      counts[id] = (counts[id] or 0) + 1
    end
    local z = deviation(counts, softmax(values, 1))
    assert(math.abs(z) < 3, z)
  end)
end)
