-- scripts/compare.lua: the same prompts under several strategies.
local json = require "llm.json"
local h = require "spec.helper"

local q = h.quote

describe("compare", function()
  local path
  setup(function()
    path = q(h.write(h.scratch "p.txt", "And God said\nIn the beginning\nMy dear\n"))
  end)

  local function compare(arguments)
    local out, err, code = h.run("compare " .. arguments .. " --quiet --json --prompts " .. path)
    assert.equal(0, code, err)
    return json.decode(out)
  end

  it("prints a line for each strategy, with its options", function()
    local out, err, code = h.run("compare greedy 'beam --beam 2' --quiet -n 8 --prompts " .. path)
    assert.equal(0, code, err)
    local list = {}
    for line in out:gmatch "[^\n]+" do list[#list + 1] = line end
    assert.equal(3, #list)
    assert(list[1]:find "^strategy +tokens/s +logprob +length +dist%-1 +dist%-2 +rep%-4 +same ")
    assert(list[2]:find "^greedy +%d+%.%d +%-%d+%.%d+ ")
    assert(list[2]:find " 1%.00 +1%.00 +0$")
    assert(list[3]:find "^beam %-%-beam 2 ")
    for _, line in ipairs(list) do assert.equal(#list[1], #line) end
  end)

  it("holds all against the first: beam of one is greedy", function()
    local got = compare "greedy 'beam --beam 1' 'sample --temperature 0' -n 8"
    assert.equal(3, got.prompts)
    local first = got.strategies[1]
    for _, row in ipairs(got.strategies) do
      assert.equal(1, row.same_text)
      assert.equal(1, row.same_prefix)
      assert(math.abs(first.logprob - row.logprob) < 1e-9)
      assert.equal(first.length, row.length)
      assert.equal(first.distinct_2, row.distinct_2)
      assert.equal(0, row.failed)
    end
  end)

  it("counts length, variety and repetition", function()
    local loop = h.write(h.scratch "loop.lua", [[return {options = {id = 300},
      decode = function(m, p, opt, emit) for _ = 1, 8 do emit(opt.id) end end}]])
    local got = compare(q(loop) .. " " .. q(loop .. " --id 301"))
    local row, other = got.strategies[1], got.strategies[2]
    assert.equal(8, row.length)
    assert(math.abs(row.distinct_1 - 1 / 24) < 1e-12)
    assert(math.abs(row.distinct_2 - 1 / 21) < 1e-12)
    assert(math.abs(row.repetition - 4 / 5) < 1e-12)
    assert.equal(0, other.same_text)
    assert.equal(0, other.same_prefix)
    local model <close> = h.builtin()
    local sum = 0
    for _, text in ipairs {"And God said", "In the beginning", "My dear"} do
      local kv <close> = model:cache()
      model:forward(kv, model:encode(text))
      for _, entry in ipairs(model:score(kv, {300, 300, 300, 300, 300, 300, 300, 300}):lists()) do
        sum = sum + entry[1]
      end
    end
    assert(math.abs(sum / 24 - row.logprob) < 1e-4)
  end)

  it("takes shared options, unless a strategy has its own", function()
    local got = compare "greedy 'greedy -n 2' -n 5 --stop ZZ"
    assert.equal(5, got.strategies[1].length)
    assert.equal(2, got.strategies[2].length)
    assert.equal(0.4, got.strategies[2].same_prefix)
    assert.equal(1, compare("greedy -n 2 --most 1").prompts)
  end)

  it("refuses what it cannot compare", function()
    for arguments, message in pairs {
      [""] = "no SCRIPT… given",
      ["greedy"] = "no --prompts given",
      ["nosuch --prompts " .. path] = "no script 'nosuch'",
      ["'greedy --beam 2' --prompts " .. path] = "unknown option '--beam'",
      ["score --prompts " .. path] = "no table with a function decode",
      ["\"greedy 'x\" --prompts " .. path] = "a quote is not closed",
      ["greedy --prompts /nonexistent"] = "/nonexistent: No such file",
    } do
      local _, err, code = h.run("compare " .. arguments)
      assert(code == 1 or code == 2, arguments)
      assert(err:find(message, 1, true), err)
    end
  end)
end)
