-- The watermark and its detector.
local greenlist = require "llm.greenlist"
local llm = require "llm"
local h = require "spec.helper"
local json = require "dkjson"

local V = 1000

-- The set of green ids behind a sequence.
local function green_ids(params, seq)
  local zeros, out, n = {}, {}, 0
  for i = 1, V do zeros[i] = 0 end
  local stage = require "samplers.watermark"(params)
  for i, x in ipairs(stage(llm.logits {zeros}, {seq}):lists()[1]) do
    if x ~= 0 then
      assert.equal(params.delta or 2, x)
      out[i - 1], n = true, n + 1
    end
  end
  return out, n
end

describe("samplers/watermark.lua", function()
  it("raises a part gamma of the vocabulary by delta", function()
    for _, gamma in ipairs {0.1, 0.25, 0.5, 0.9} do
      local sum = 0
      for id = 1, 40 do sum = sum + select(2, green_ids({gamma = gamma}, llm.seq {id})) end
      assert(math.abs(sum / (40 * V) - gamma) < 0.02, sum)
    end
    assert.equal(0, select(2, green_ids({gamma = 0}, llm.seq {3})))
    assert.equal(V, select(2, green_ids({gamma = 1}, llm.seq {3})))
  end)

  it("chooses it by the last `width` ids and the key alone", function()
    local plain = green_ids({width = 2}, llm.seq {1, 2, 3})
    assert.same(plain, (green_ids({width = 2}, llm.seq {9, 2, 3})))
    assert.not_same(plain, (green_ids({width = 2}, llm.seq {1, 3, 3})))
    assert.not_same(plain, (green_ids({width = 2}, llm.seq {1, 3, 2})))
    assert.not_same(plain, (green_ids({width = 2, key = 4}, llm.seq {1, 2, 3})))
    assert.same(green_ids({width = 0}, llm.seq {1}), (green_ids({width = 0}, llm.seq {5, 6})))
  end)

  it("marks nothing where there are fewer ids than `width`", function()
    assert.equal(0, select(2, green_ids({width = 3}, llm.seq {1, 2})))
    assert.equal(0, select(2, green_ids({}, llm.seq {})))
  end)

  it("has green lists of different places that overlap as chance has it", function()
    local n, both = 60, 0
    local sets = {}
    for id = 1, n do sets[id] = green_ids({gamma = 0.5}, llm.seq {id}) end
    for i = 2, n do
      for id in pairs(sets[i]) do both = both + (sets[i - 1][id] and 1 or 0) end
    end
    assert(math.abs(both / ((n - 1) * V) - 0.25) < 0.03, both)
  end)

  it("agrees with the test of one id", function()
    local seq = llm.seq {4, 8, 15}
    local green = green_ids({gamma = 0.3, width = 2, key = 7}, seq)
    local a, b = greenlist.hash(7, seq.ids, 3, 2)
    for id = 0, V - 1, 7 do
      local test = greenlist.test(llm.tensor({{id}}, "i32"), {a}, {b}, 0.3):item()
      assert.equal(green[id] and 1 or 0, test)
    end
  end)
end)

describe("scripts/watermark_detect.lua", function()
  local function make(chain)
    local out, err = h.run("sample -n 200 --json --quiet --ignore-eog --seed 5 -p 'And the LORD' "
      .. "--sampler " .. h.quote(chain))
    return assert(json.decode(out), err)
  end

  local function detect(ids, options)
    local out, err, code = h.run(("watermark_detect --json --prompt-ids %s %s"):format(
      table.concat(ids, ","), options or ""))
    assert.equal(0, code, err)
    return (assert(json.decode(out), out))
  end

  local marked, plain
  setup(function()
    marked = make "temperature=1, watermark(delta=4)".ids
    plain = make "temperature=1".ids
  end)

  it("finds the mark, and none where there is none or another key", function()
    local found = detect(marked)
    assert.equal(#marked, found.tokens)
    assert(found.z > 6 and found.p_value < 1e-6, found.z)
    assert(found.scored <= found.tokens - 1)
    assert(math.abs(found.green / found.scored - found.fraction) < 1e-9)
    for _, other in ipairs {detect(plain), detect(marked, "--key 3"),
      detect(marked, "--width 2")} do
      assert(math.abs(other.z) < 4 and other.p_value > 1e-4, other.z)
    end
  end)

  it("counts what follows the same context once, unless all are asked for", function()
    local ids = {5, 6, 5, 6, 5, 6, 5, 7}
    assert.equal(3, detect(ids).scored)
    assert.equal(7, detect(ids, "--repeats").scored)
    assert.equal(7, detect(ids, "--width 0 --repeats").scored - 1)
  end)

  it("gives the z-score of the count and its exact tail", function()
    local found = detect({5, 6, 7, 8, 9}, "--gamma 0.5")
    local n, k = found.scored, found.green
    assert.equal(4, n)
    assert(math.abs(found.z - (k - 2) / 1) < 1e-9)
    local tails = {[0] = 16, 15, 11, 5, 1}
    assert(math.abs(found.p_value - tails[k] / 16) < 1e-9, found.p_value)
  end)

  it("reads a text too, and says it in words", function()
    local out, err, code = h.run("watermark_detect -p 'In the beginning God created the heaven'")
    assert.equal(0, code, err)
    assert(out:find "^%d+ tokens, %d+ scored, %d+ green %(.*%), z %-?%d+%.%d+, p %S+\n$", out)
    out, err, code = h.run "watermark_detect --prompt-ids 5"
    assert.equal("", out)
    assert.equal(1, code)
    assert(err:find("text too short: 1 of 2 tokens", 1, true), err)
  end)
end)
