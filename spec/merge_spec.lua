-- scripts/merge.lua: the results of shards in one file.
local json = require "llm.json"
local h = require "spec.helper"

local q = h.quote

local function merge(arguments)
  local _, err, code = h.run("merge " .. arguments)
  return code, err
end

local function bare(path)
  return (h.read(path):gsub('"timings":{[^}]*}', ""))
end

describe("merge", function()
  local path, out, whole = nil, h.scratch "all.jsonl", h.scratch "whole.jsonl"

  local function shard(i) return q(h.scratch(("s.%d-of-3.jsonl"):format(i))) end

  setup(function()
    local texts = {}
    for i = 1, 10 do texts[i] = i == 4 and "{bad" or ('{"prompt": "And %d"}'):format(i) end
    path = h.write(h.scratch "in.jsonl", table.concat(texts, "\n"))
    local command = "greedy -n 3 --quiet --prompts " .. q(path) .. " --out "
    h.run(command .. q(whole) .. " --ordered")
    for i = 1, 3 do
      h.run(("%s%s --shard %d/3 --jobs 2"):format(command, q(h.scratch "s.jsonl"), i))
    end
  end)
  before_each(function() os.remove(out) end)

  it("makes of shards what one process makes, in order", function()
    local code, err = merge(("--out %s %s %s %s"):format(q(out), shard(3), shard(1), shard(2)))
    assert.equal(0, code, err)
    assert(err:find("10 results of 3 files, 1 of them failed, 0 missing", 1, true), err)
    assert.equal(bare(whole), bare(out))
  end)

  it("names what is missing, by the side file also at the end, and writes nothing", function()
    local code, err = merge(("--out %s %s %s"):format(q(out), shard(2), shard(3)))
    assert.equal(1, code)
    assert(err:find("no result of 1, 4, 7, 10 (--incomplete writes the others)", 1, true), err)
    assert.is_false(h.exists(out))
    code, err = merge(("--out %s --incomplete %s %s"):format(q(out), shard(2), shard(3)))
    assert.equal(0, code, err)
    assert(err:find("4 missing", 1, true), err)
    local last = 0
    for line in h.read(out):gmatch "[^\n]+" do
      local index = json.decode(line).index
      assert(index > last)
      last = index
    end
  end)

  it("names what is there twice", function()
    local code, err = merge(("--out %s %s %s %s"):format(q(out), shard(1), shard(1), shard(2)))
    assert.equal(1, code)
    assert(err:find("more than one result of 1, 4, 7, 10", 1, true), err)
  end)

  it("refuses files that do not belong together, or are no results", function()
    local other = h.scratch "other.jsonl"
    h.run("greedy -n 4 --quiet --prompts " .. q(path) .. " --out " .. q(other))
    local code, err = merge(("--out %s %s %s"):format(q(out), shard(1), q(other)))
    assert.equal(1, code)
    assert(err:find("were made with another options", 1, true), err)
    local text = h.write(h.scratch "text.jsonl", "hello\n")
    code, err = merge(("--out %s %s"):format(q(out), q(text)))
    assert.equal(1, code)
    assert(err:find("text.jsonl: line 1 is no result line", 1, true), err)
    local torn = h.write(h.scratch "torn.jsonl", h.read(whole):sub(1, -5))
    code, err = merge(("--out %s %s"):format(q(out), q(torn)))
    assert.equal(1, code)
    assert(err:find("its last line is not whole", 1, true), err)
    assert.equal(1, (merge(("--out %s /nonexistent"):format(q(out)))))
  end)

  it("asks for what it needs, and keeps a file that is there", function()
    assert.equal(2, (merge ""))
    assert.equal(2, (merge(shard(1))))
    assert.equal(2, (merge("--out " .. q(out))))
    h.write(out, "x")
    local code, err = merge(("--out %s %s %s %s"):format(q(out), shard(1), shard(2), shard(3)))
    assert.equal(1, code)
    assert(err:find("is there (--overwrite writes it anew)", 1, true), err)
    assert.equal("x", h.read(out))
  end)
end)
