local llm = require "llm"

-- Philox4x32-10 in plain Lua: the four words of a counter.
local function philox(seed, counter)
  local k0, k1 = seed & 0xffffffff, seed >> 32
  local c0, c1, c2, c3 = table.unpack(counter)
  for _ = 1, 10 do
    local p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
    c0, c1, c2, c3 = (p1 >> 32) ~ c1 ~ k0, p1 & 0xffffffff, (p0 >> 32) ~ c3 ~ k1, p0 & 0xffffffff
    k0, k1 = (k0 + 0x9E3779B9) & 0xffffffff, (k1 + 0xBB67AE85) & 0xffffffff
  end
  return {c0, c1, c2, c3}
end

local function uniform(seed, stream, position, v)
  local counter = {v // 4, position, stream & 0xffffffff, stream >> 32}
  local word = philox(seed, counter)[v % 4 + 1]
  return math.min((word + 0.5) / 2 ^ 32, 1 - 2 ^ -24)
end

-- ln(1 + x), good for small x.
local function log1p(x)
  local u = 1 + x
  return u == 1 and x or math.log(u) * x / (u - 1)
end

local function noise(...)
  return -math.log(-log1p(-uniform(...)))
end

describe("an Rng", function()
  it("is seed 0, stream 1, position 1 by default", function()
    local rng = llm.rng()
    assert.same({0, 1, 1}, {rng.seed, rng.stream, rng.position})
    assert.equal(7, llm.rng(7).seed)
    assert.equal(-1, llm.rng(-1).seed)
    assert.equal("llm.Rng seed 7, stream 1, position 1", tostring(llm.rng(7)))
  end)

  it("gives Philox4x32-10 by seed, stream and position", function()
    for _, seed in ipairs {0, 1, 0x123456789abcdef, -5} do
      for _, stream in ipairs {1, 7, 1 << 40} do
        local rng = llm.rng(seed):fork(stream)
        for position = 1, 5 do
          assert.equal(position, rng.position)
          assert.equal(uniform(seed, stream, position, 0), rng:uniform())
        end
      end
    end
  end)

  it("makes copies at other positions and streams and stays where it is", function()
    local rng = llm.rng(3)
    local at, fork = rng:at(9), rng:at(4):fork(2)
    assert.same({3, 1, 9}, {at.seed, at.stream, at.position})
    assert.same({3, 2, 4}, {fork.seed, fork.stream, fork.position})
    assert.equal(1, rng.position)
    at:uniform()
    assert.equal(1, rng.position)
  end)

  it("adds Gumbel noise that depends on row, id and position alone", function()
    local flat = {}
    for i = 1, 11 do flat[i] = 0 end
    local logits = llm.logits {flat, flat, flat}
    local rng = llm.rng(42):at(6)
    local noisy = logits:gumbel(rng):lists()
    assert.equal(7, rng.position)
    for r = 1, 3 do
      for v = 0, 10 do
        local expected = noise(42, r, 6, v)
        local got = noisy[r][v + 1]
        assert(math.abs(got - expected) <= 1e-6 * math.max(1, math.abs(expected)),
          got .. " " .. expected)
      end
    end
  end)

  it("draws the argmax of logits plus noise", function()
    local list = {}
    for r = 1, 4 do
      list[r] = {}
      for v = 1, 50 do list[r][v] = math.sin(r * 13.7 + v * 3.1) * 3 end
    end
    local logits = llm.logits(list)
    local draw, same = llm.rng(5), llm.rng(5)
    for position = 1, 20 do
      local ids = logits:sample(draw)
      assert.same({4, 1, "i32"}, {ids.n_rows, ids.n_columns, ids.dtype})
      assert.same(logits:gumbel(same):argmax():tolist(), ids:tolist())
      assert.equal(position + 1, draw.position)
    end
  end)

  it("may be one a row, as in a batch of jobs", function()
    local logits = llm.logits {{1, 2, 3, 2, 1}, {3, 1, 2, 2, 0}}
    local a, b = llm.rng(1):at(3), llm.rng(2):fork(9)
    local alone_a = logits:row(1):gumbel(llm.rng(1):at(3)):lists()[1]
    local alone_b = logits:row(2):gumbel(llm.rng(2):fork(9)):lists()[1]
    assert.same({alone_a, alone_b}, logits:gumbel({a, b}):lists())
    assert.same({4, 2}, {a.position, b.position})
  end)

  it("draws with the probabilities of the softmax", function()
    local p, n, counts = {0.5, 0.3, 0.15, 0.05}, 4000, {0, 0, 0, 0}
    local row = {}
    for i = 1, 4 do row[i] = math.log(p[i]) end
    local logits, rng = llm.logits {row}, llm.rng(11)
    for _ = 1, n do
      local id = logits:sample(rng):item() + 1
      counts[id] = counts[id] + 1
    end
    for i = 1, 4 do
      local sigma = math.sqrt(p[i] * (1 - p[i]) / n)
      assert(math.abs(counts[i] / n - p[i]) < 4 * sigma, counts[i])
    end
  end)

  it("never draws what is -inf", function()
    local logits = llm.logits {{-math.huge, 0, -math.huge, -50}}
    local rng = llm.rng(1)
    for _ = 1, 50 do
      local id = logits:sample(rng):item()
      assert(id == 1 or id == 3)
    end
  end)

  it("does not move on when the draw fails", function()
    local rng = llm.rng(1)
    local logits = llm.logits {{1, 2}, {2, 1}}
    local ok, err = pcall(logits.sample, logits, {rng})
    assert.is_false(ok)
    assert.equal("1 rngs for 2 rows", err.message)
    assert.is_false(pcall(logits.sample, logits, 5))
    assert.is_false(pcall(logits.sample, logits))
    assert.equal(1, rng.position)
  end)

  it("refuses arguments that are no integers", function()
    for _, bad in ipairs {4.5, "4", true} do
      local ok, err = pcall(llm.rng, bad)
      assert.is_false(ok)
      assert.equal("misuse", err.kind)
    end
    assert.is_false(pcall(llm.rng(1).at, llm.rng(1), -1))
    assert.is_false(pcall(llm.rng(1).fork, llm.rng(1), nil))
    assert.equal(4, llm.rng(4.0).seed)
  end)
end)
