-- Stop strings, without a model.
local stop = require "llm.stop"
local h = require "spec.helper"

describe("a stop string", function()
  it("ends the text before its first byte", function()
    assert.same({3, 5}, {stop.find("ababc", {"abc"})})
    assert.is_nil(stop.find("ababc", {"x", "abcd"}))
    assert.same({1, 1}, {stop.find("%d+", {"%"})})
  end)

  it("is the one that is complete first, the longer of two that end together", function()
    assert.same({3, 4}, {stop.find("abcdef", {"abcdef", "cd"})})
    assert.same({1, 4}, {stop.find("abcd", {"cd", "abcd"})})
    assert.same({2, 2}, {stop.find("abcabc", {"c", "b"})})
  end)

  it("may be pending at the end of the text", function()
    assert.equal(2, stop.pending("xxab", {"abc"}))
    assert.equal(1, stop.pending("aaa", {"ab"}))
    assert.equal(3, stop.pending("aab", {"aabx", "bx"}))
    assert.equal(0, stop.pending("xyz", {"abc"}))
    assert.equal(0, stop.pending("", {"abc"}))
    assert.equal(0, stop.pending("abc", {"abc"}))
  end)
end)

-- The rule of a job with seed 0.
local function rule_of(path)
  return assert(assert(stop.read_rule(path))(0))
end

describe("a stop rule", function()
  it("is a file that returns a function", function()
    local path = h.write(h.scratch "rule.lua",
      "return function(ids, text) return #ids > 2 or text end")
    local rule = rule_of(path)
    assert.is_true(rule({1, 2, 3}, "x"))
    assert.equal("y", rule({1}, "y"))
  end)

  it("that is something else is refused by name", function()
    for text, message in pairs {
      ["return 3"] = "returns a number, not a function",
      ["error 'x'"] = "x",
      ["return function("] = "expected",
    } do
      local path = h.write(h.scratch "rule.lua", text)
      local rule, wrong = stop.read_rule(path)
      assert.is_nil(rule)
      assert(wrong:find(message, 1, true), wrong)
      assert(wrong:find("rule.lua", 1, true), wrong)
    end
  end)

  it("that throws is an error that names it", function()
    local path = h.write(h.scratch "rule.lua", "return function() error('boom', 0) end")
    local ok, err = pcall(rule_of(path), {}, "")
    assert.is_false(ok)
    assert.equal("script", err.kind)
    assert.equal(("stop rule %s: boom"):format(path), err.message)
  end)

  it("is each job's own: what its file keeps in locals no other job sees", function()
    local path = h.write(h.scratch "rule.lua",
      "local n = 0 return function() n = n + 1 return n > 1 end")
    local make = assert(stop.read_rule(path))
    local a, b = make(0), make(0)
    assert.is_false(a({1}, ""))
    assert.is_true(a({1}, ""))
    assert.is_false(b({1}, ""))
  end)
end)
