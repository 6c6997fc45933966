local llm = require "llm"

local inf = math.huge

local function fails(kind, pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.equal(kind, err.kind, tostring(err))
  assert(err.message:find(pattern), err.message)
end

-- The ids that are left in each row.
local function kept(logits)
  local out = {}
  for r, row in ipairs(logits:lists()) do
    out[r] = {}
    for i, x in ipairs(row) do
      if x > -inf then out[r][#out[r] + 1] = i - 1 end
    end
  end
  return out
end

local function log_of(p)
  local row = {}
  for i, x in ipairs(p) do row[i] = math.log(x) end
  return llm.logits(row)
end

describe("Logits", function()
  it("name columns by token id, from 0", function()
    local logits = llm.logits {{3, 5, 1}}
    assert.equal(3, #logits)
    assert.same({3, 5, 1}, {logits[0], logits[1], logits[2]})
    fails("misuse", "index must be 0 to 2, got 3", function() return logits[3] end)
    assert.equal(1, logits:argmax():item())
    local scores, ids = logits:topk(2)
    assert.same({{5, 3}, {1, 0}}, {scores:tolist(), ids:tolist()})
    assert.same({1, 3}, logits:gather({2, 0}):tolist())
    assert.same({1, 3}, llm.logits({1, 3}):tolist())
    assert.same({5, 1}, logits:narrow(2, 1, 2):tolist())
  end)

  it("stay Logits through filters and operations entry by entry", function()
    local logits = llm.logits {{3, 5, 1}}
    for _, t in ipairs {logits + 1, logits / 2, -logits, logits:exp(), logits:top_k(2),
      logits:log_softmax(),
      logits:softmax(), logits:mask({1}), logits:add_at({1}, 2), logits:copy(), logits:row(1),
        logits:rows({1, 1}),
      logits:clamp(0, 1), 1 - logits} do
      assert.is_true(t.is_logits)
    end
    assert.is_false(logits:narrow(2, 0, 2).is_logits)
    assert.is_false(logits:argmax().is_logits)
    assert.is_false(logits:max().is_logits)
    assert.is_false(logits:t().is_logits)
  end)

  it("give rows by number from 1 where there are several", function()
    local logits = llm.logits {{3, 5, 1}, {2, 0, 9}}
    assert.equal(2, #logits)
    assert.equal(9, logits[2][2])
    assert.is_true(logits[2].is_logits)
  end)
end)

describe("choosing", function()
  it("takes the lower id of equals", function()
    assert.same({1, 0}, llm.logits({{1, 4, 4}, {2, 2, 2}}):argmax():tolist())
    local _, ids = llm.logits({{1, 4, 2, 4, 4}}):topk(4)
    assert.same({1, 3, 4, 2}, ids:tolist())
  end)

  it("gives all where k is above the vocabulary", function()
    local scores, ids = llm.logits({{1, 4, 2}, {0, 0, 0}}):topk(10)
    assert.same({2, 3}, {scores.n_rows, scores.n_columns})
    assert.same({{1, 2, 0}, {0, 1, 2}}, ids:lists())
    fails("misuse", "k must be at least 1, got 0", function() scores:topk(0) end)
    fails("misuse", "k must be an integer, got 4.5", function() scores:topk(4.5) end)
    fails("misuse", "k must be an integer, got a string", function() scores:topk("4") end)
  end)

  it("ranks all rows together, or groups of them", function()
    local logits = llm.logits {{1, 9, 3}, {9, 2, -inf}, {5, 5, 5}, {6, 0, 7}}
    local scores, ids, rows = logits:topk_joint(4)
    assert.same({9, 9, 7, 6}, scores:tolist())
    assert.same({1, 0, 2, 0}, ids:tolist())
    assert.same({1, 2, 4, 4}, rows:tolist())
    scores, ids, rows = logits:topk_joint(3, {groups = 2})
    assert.same({9, 9, 3, 7, 6, 5}, scores:tolist())
    assert.same({1, 0, 2, 2, 0, 0}, ids:tolist())
    assert.same({1, 2, 1, 4, 4, 3}, rows:tolist())
    assert.same({1, "i32"}, {ids.n_columns, ids.dtype})
    scores = logits:topk_joint(100, {groups = 4})
    assert.equal(12, #scores)
    assert.equal(-inf, scores[6])
    fails("misuse", "unknown option group; known: groups", logits.topk_joint, logits, 3, {
      group = 2})
    fails("misuse", "groups", logits.topk_joint, logits, 3, {groups = 3})
  end)

  it("from a row that has a NaN, +inf or no finite entry raises when it is read", function()
    local function read(row) return function() return llm.logits({row}):argmax():item() end end
    fails("nan", "row 1", read {1, 0 / 0, 2})
    fails("nan", "inf", read {1, inf, 2})
    fails("no_finite", "row 1", read {-inf, -inf})
    local ids = llm.logits({{1, 2}, {-inf, -inf}}):argmax()
    fails("no_finite", "row 2", function() return ids:tolist() end)
    fails("no_finite", "row 1", function() return llm.logits({{-inf,
      -inf}}):sample(llm.rng(1)):item() end)
    fails("nan", "row 1", function() return llm.logits({{0 / 0, 1}}):sample(llm.rng(1)):item() end)
  end)
end)

describe("filters", function()
  it("top_k keeps exactly k, the lower id of equals", function()
    assert.same({{0, 1}}, kept(log_of({.4, .3, .3, 0}):top_k(2)))
    assert.same({{0, 1, 2, 3}}, kept(llm.logits({1, 1, 1, 1}):top_k(9)))
    assert.same({{0, 1, 2, 3}}, kept(llm.logits({1, 1, 1, 1}):top_k(0)))
    assert.same({{1}, {0, 2}}, kept(llm.logits({{1, 2, 1}, {5, 1, 5}}):top_k({1, 2})))
    fails("misuse", "k must be at least 0, got %-1", function() llm.logits({1}):top_k(-1) end)
    fails("misuse", "k must be an integer, got 1.5", function() llm.logits({1}):top_k(1.5) end)
  end)

  it("top_p keeps the smallest set of that mass", function()
    assert.same({{0, 3}}, kept(log_of({.3, .1, .1, .5}):top_p(.8)))
    assert.same({{0, 1, 2, 3}}, kept(log_of({.3, .1, .1, .5}):top_p(1)))
    assert.same({{3}}, kept(log_of({.3, .1, .1, .5}):top_p(0)))
    assert.same({{3}}, kept(log_of({.3, .1, .1, .5}):top_p(1e-8)))
    for _, bad in ipairs {-0.1, 1.1, 0 / 0} do
      fails("misuse", "", function() log_of({.5, .5}):top_p(bad) end)
    end
  end)

  it("sees what the filter before left, renormalised", function()
    local logits = log_of {.35, .25, .20, .05, .03, .03, .03, .03, .03}
    assert.same({{0, 1, 2}}, kept(logits:top_k(4):top_p(.82)))
  end)

  it("min_p keeps what is likely beside the likeliest", function()
    assert.same({{0, 3}}, kept(log_of({.3, .1, .1, .5}):min_p(.5)))
    assert.same({{0, 1, 2, 3}}, kept(log_of({.3, .1, .1, .5}):min_p(0)))
    assert.same({{3}}, kept(log_of({.3, .1, .1, .5}):min_p(1)))
  end)

  it("cut_below keeps at least the largest", function()
    assert.same({{1, 2}}, kept(llm.logits({1, 3, 2}):cut_below(2)))
    assert.same({{1}}, kept(llm.logits({1, 3, 2}):cut_below(100)))
    assert.same({{0, 1, 2}, {0}}, kept(llm.logits({{1, 3, 2}, {9, 1, 1}}):cut_below({0, 5})))
  end)

  it("by threshold follow a key", function()
    local logits = llm.logits {1, 3, 2, 0}
    local key = llm.tensor {{0, 3, 1, 2}}
    assert.same({{0, 2}}, kept(logits:threshold_k(2, key)))
    assert.same({{1, 2}}, kept(logits:threshold_k(2)))
    local p = log_of {.1, .5, .3, .1}
    assert.same({{1, 2}}, kept(p:threshold_mass(.7)))
    assert.same({{0, 2}}, kept(p:threshold_mass(.35, key)))
    assert.same({{1}}, kept(p:threshold_mass(0)))
  end)

  it("never empty a row that has a finite entry", function()
    local row = {-inf, -1e30, -inf, -2e30}
    local logits = llm.logits {row}
    for name, value in pairs {top_k = 1, top_p = 0, min_p = 1, cut_below = inf, threshold_mass = 0,
      threshold_k = 1} do
      assert.same({{1}}, kept(logits[name](logits, value)), name)
    end
  end)

  it("mask and only take ids for all rows or for each", function()
    local logits = llm.logits {{1, 2, 3, 4}, {5, 6, 7, 8}}
    assert.same({{0, 3}, {0, 3}}, kept(logits:mask({1, 2})))
    assert.same({{1, 2, 3}, {0}}, kept(logits:mask({{0}, {1, 2, 3}})))
    assert.same({{1, 2}, {1, 2}}, kept(logits:only({2, 1})))
    assert.same({{}, {1}}, kept(logits:only({{}, {1}})))
    assert.same({{}, {}}, kept(logits:only({})))
    assert.same({{0, 1, 2, 3}, {0, 1, 2, 3}}, kept(logits:mask({})))
    assert.same({{3}, {3}}, kept(logits:only(3)))
    assert.same({{1}, {2}}, kept(logits:only(llm.tensor {1, 2})))
    assert.same({{1, 2}, {1, 2}}, kept(logits:only(llm.tensor {{1, 2}})))
    assert.same({{1, 3}, {2, 3}}, kept(logits:only(llm.tensor {{1, 3}, {3, 2}})))
    assert.same({{1, 2}}, kept(logits:row(1):only(llm.tensor {1, 2})))
    fails("misuse", "3 lists of ids for 2 rows", logits.mask, logits, {{1}, {1}, {1}})
    fails("misuse", "4", logits.mask, logits, {4})
    fails("misuse", "", logits.mask, logits, {-1})
    fails("misuse", "ids%[1%] must be an integer, got a string", logits.mask, logits, {"1"})
  end)

  it("have versions in place that give the same", function()
    local list = {{1, 4, 2, 0, 3}, {0, -1, -2, -3, 5}}
    for name, arguments in pairs {top_k = {2}, top_p = {0.6}, min_p = {0.3}, cut_below = {1.5},
      mask = {{1}},
      only = {{1, 2}}, threshold_k = {2}, threshold_mass = {0.7}, add_at = {{1, 2}, 1.5}, set_at = {
        {0}, -1},
      log_softmax = {}, gumbel = {llm.rng(3)}} do
      local logits = llm.logits(list)
      if name == "gumbel" then arguments = {llm.rng(3)} end
      local expected = logits[name](logits, table.unpack(arguments)):lists()
      assert.same(list, logits:lists(), name)
      if name == "gumbel" then arguments = {llm.rng(3)} end
      assert.equal(logits, logits[name .. "_"](logits, table.unpack(arguments)), name)
      assert.same(expected, logits:lists(), name)
      assert.is_true(logits.is_logits)
    end
  end)
end)

describe("values at ids", function()
  local logits = llm.logits {{1, 2, 3}, {4, 5, 6}}

  it("are gathered for all rows or for each", function()
    assert.same({{3, 1}, {6, 4}}, logits:gather({2, 0}):lists())
    assert.same({{3}, {4}}, logits:gather({{2}, {0}}):lists())
    assert.same({{3}, {4}}, logits:gather(llm.tensor {2, 0}):lists())
    assert.same({{2}, {5}}, logits:gather(1):lists())
    local scores, ids = logits:topk(2)
    assert.same(scores:lists(), logits:gather(ids):lists())
    fails("misuse", "3", logits.gather, logits, {3})
    fails("misuse", "has 1 entries", logits.gather, logits, {{1}, {1, 2}})
  end)

  it("are added and set by number, by id, by row or both", function()
    assert.same({{1, 12, 3}, {4, 15, 6}}, logits:add_at({1}, 10):lists())
    assert.same({{11, 2, 23}, {14, 5, 26}}, logits:add_at({0, 2}, {{10, 20}}):lists())
    assert.same({{11, 2, 3}, {24, 5, 6}}, logits:add_at({0}, {10, 20}):lists())
    assert.same({{9, 8, 7}, {9, 8, 7}}, logits:set_at({0, 1, 2}, {9, 8, 7}):lists())
    assert.same({{9, 2, 3}, {4, 5, 8}}, logits:set_at({{0}, {2}}, {9, 8}):lists())
    assert.same({9, 8, 3}, logits:row(1):set_at({0, 1}, {9, 8}):tolist())
    assert.same({{-inf, 2, 3}, {-inf, 5, 6}}, logits:set_at(0, -inf):lists())
    assert.same({{1, 4, 3}, {4, 7, 6}}, logits:add_at({1, 1}, 1):lists())
    fails("misuse", "", logits.set_at, logits, {3}, 1)
    fails("misuse", "values must be a number, a tensor or a list, got nil", logits.set_at, logits,
      {0})
  end)
end)
