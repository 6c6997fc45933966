-- Trees of candidates: model:forward(kv, ids, {parents = …}) and kv:keep.
local h = require "spec.helper"
local llm = require "llm"

-- A reproducible list of n integers from 0 to below(i) - 1.
local function draws(seed, n, below)
  local rng, list = llm.rng(seed), {}
  for i = 1, n do
    list[i] = math.min(math.floor(rng:uniform() * below(i)), below(i) - 1)
  end
  return list
end

local function random_ids(seed, n) return draws(seed, n, function() return 300 end) end

-- Some near the end, so that paths grow long; some anywhere.
local function random_tree(seed, n)
  local near = draws(seed, n, function() return 4 end)
  local any = draws(seed + 1, n, function(i) return i end)
  for i = 1, n do
    if i % 4 ~= 0 then any[i] = math.max(0, i - 1 - near[i]) end
  end
  return any
end

local function filled(model, n)
  local kv = model:cache()
  if n > 0 then model:forward(kv, random_ids(7, n), {rows = 0}) end
  return kv
end

-- The row of each node of a tree, ids fed one by one on forks of the cache.
local function one_by_one(model, kv, ids, parents)
  local rows, kvs = {}, {[0] = kv}
  for i, id in ipairs(ids) do
    kvs[i] = kvs[parents[i]]:fork()
    rows[i] = model:forward(kvs[i], id):tolist()
  end
  for i = 1, #ids do kvs[i]:close() end
  return rows
end

-- Positions of the path that ends in node i.
local function path(parents, i, n_past)
  local positions = {}
  while i > 0 do
    table.insert(positions, 1, n_past + i)
    i = parents[i]
  end
  return positions
end

local function fails(message, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.equal("misuse", err.kind)
  assert.equal(message, err.message)
end

local models = {
  {"llama-f32", 600}, {"llama-q4_0", 600}, {"llama256-q4_k_m", 600}, {"llama-yarn", 600},
  {"qwen2-f32", 600}, {"qwen3-bf16", 600}, {"gemma3-f32", 600}, {"gpt2-f32", 128},
}

for _, device in ipairs {"ref", "cpu"} do
  for _, entry in ipairs(models) do
    local name, ctx = entry[1], entry[2]

    describe(("a tree, %s on %s"):format(name, device), function()
      local model
      setup(function()
        model = h.tiny(name, {device = device, ctx = ctx, threads = device == "cpu" and 2 or 1})
      end)
      teardown(function() model:close() end)

      it("gives each row the bits of its path fed one by one", function()
        for i, n_past in ipairs {0, 27, 64, 250, 505} do
          if n_past + 20 <= ctx then
            local kv <close> = filled(model, n_past)
            local ids, parents = random_ids(i, 20), random_tree(10 * i, 20)
            local want = one_by_one(model, kv, ids, parents)
            local logits, hidden = model:forward(kv, ids, {rows = "all", parents = parents,
              hidden = {1}})
            assert.same(want, logits:lists(), n_past)
            assert.equal(20, hidden[1].n_rows)
            assert.equal(n_past + 20, #kv)
          end
        end
      end)

      it("that is a chain is no tree", function()
        local kv <close> = filled(model, 30)
        local plain <close> = filled(model, 30)
        local ids = random_ids(3, 6)
        local want = model:forward(plain, ids, {rows = "all"}):lists()
        local opts = {rows = "all", parents = {0, 1, 2, 3, 4, 5}}
        assert.same(want, model:forward(kv, ids, opts):lists())
        assert.same(model:forward(plain, 5):tolist(), model:forward(kv, 5):tolist())
      end)

      it("keep(path) leaves a sequence like one that never held a tree", function()
        for i, n_past in ipairs {0, 29, 250} do
          if n_past + 20 <= ctx then
            local base <close> = filled(model, n_past)
            local ids, parents = random_ids(20 + i, 20), random_tree(30 * i, 20)
            for _, node in ipairs {1, 11, 20} do
              local kv <close> = base:fork()
              local plain <close> = base:fork()
              local positions, kept = path(parents, node, n_past), {}
              model:forward(kv, ids, {parents = parents, rows = 0})
              kv:keep(positions)
              for j, position in ipairs(positions) do kept[j] = ids[position - n_past] end
              model:forward(plain, kept, {rows = 0})
              assert.equal(n_past + #kept, #kv)
              assert.same(plain:tokens(), kv:tokens())
              local more = random_ids(5, 3)
              assert.same(model:forward(plain, more, {rows = "all"}):lists(),
                model:forward(kv, more, {rows = "all"}):lists())
            end
          end
        end
      end)

      it("gives the same bits alone and among other trees and plain sequences", function()
        local lengths, counts = {40, 0, 90, 33}, {9, 4, 1, 12}
        local kvs, ids, parents, want = {}, {}, {}, {}
        for i, n_past in ipairs(lengths) do
          kvs[i], ids[i] = filled(model, n_past), random_ids(40 + i, counts[i])
          local tree = random_tree(50 + i, counts[i])
          if i == 2 then tree = {0, 1, 2, 3} end -- the second is plain
          table.move(tree, 1, counts[i], #parents + 1, parents)
          local alone <close> = kvs[i]:fork()
          local opts = {rows = "all", parents = i ~= 2 and tree or nil}
          local rows = model:forward(alone, ids[i], opts):lists()
          table.move(rows, 1, counts[i], #want + 1, want)
        end
        assert.same(want, model:forward(kvs, ids, {rows = "all", parents = parents}):lists())
        kvs[2]:truncate(2) -- no tree: forward goes on
        model:forward(kvs[2], 1)
        for i = 1, 4 do kvs[i]:close() end
      end)
    end)
  end

  describe("a tree on " .. device, function()
    it("gives the bits of its paths with every type of the cache and number of threads", function()
      for _, kv_type in ipairs {"f32", "f16", "q8_0"} do
        for threads = 1, 2 do
          local model <close> = h.tiny("llama-f32",
            {device = device, kv = kv_type, ctx = 600, threads = threads})
          for _, n_past in ipairs {31, 253} do
            local kv <close> = filled(model, n_past)
            local ids, parents = random_ids(n_past, 33), random_tree(n_past, 33)
            assert.same(one_by_one(model, kv, ids, parents),
              model:forward(kv, ids, {rows = "all", parents = parents}):lists())
          end
        end
      end
    end)

    it("gives the bits of paths longer than a page and a chunk", function()
      local model <close> = h.tiny("gemma3-f32", {device = device, ctx = 600, piece = 400})
      local kv <close> = filled(model, 200)
      local ids, parents = random_ids(1, 330), {}
      for i = 1, 330 do parents[i] = i == 3 and 1 or i - 1 end -- the second is a leaf
      local plain <close> = kv:fork()
      table.remove(ids, 2)
      local want = model:forward(plain, ids, {rows = 1}):lists()
      table.insert(ids, 2, 77)
      assert.same(want, model:forward(kv, ids, {parents = parents}):lists())
    end)
  end)
end

describe("a cache that ends in a tree", function()
  local model, kv
  setup(function() model = h.tiny "llama-f32" end)
  teardown(function() model:close() end)
  before_each(function()
    kv = filled(model, 10)
    model:forward(kv, {5, 6, 7, 8}, {parents = {0, 1, 1, 2}})
  end)
  after_each(function() kv:close() end)

  it("is not fed, scored or saved: the error names the tree", function()
    fails("cache 1 ends in a tree of 4 candidates: keep or truncate first",
      model.forward, model, kv, 1)
    local ok, err = pcall(model.score, model, kv, {1, 2})
    assert.is_true(not ok and err.kind == "misuse" and err.message:find "without a tree" ~= nil)
    local saved, message = kv:save(h.scratch "tree.kv")
    assert.is_nil(saved)
    assert.truthy(message:find "tree")
    assert.equal(14, #kv)
  end)

  it("keep({}) drops the tree", function()
    local plain <close> = filled(model, 10)
    kv:keep {}
    assert.equal(10, #kv)
    assert.same(plain:tokens(), kv:tokens())
    assert.same(model:forward(plain, 9):tolist(), model:forward(kv, 9):tolist())
  end)

  it("truncate drops what it cuts, and the tree where a chain is left", function()
    local plain <close> = filled(model, 10)
    kv:truncate(13)
    fails("cache 1 ends in a tree of 3 candidates: keep or truncate first",
      model.forward, model, kv, 1)
    kv:truncate(12)
    model:forward(plain, {5, 6})
    assert.same(model:forward(plain, 9):tolist(), model:forward(kv, 9):tolist())
  end)

  it("forks with its tree; each side keeps its own path", function()
    local fork <close> = kv:fork()
    local early <close> = kv:fork(10)
    local a <close> = filled(model, 10)
    local b <close> = filled(model, 10)
    kv:keep {11, 13}
    fork:keep {11, 12, 14}
    model:forward(a, {5, 7})
    model:forward(b, {5, 6, 8})
    assert.same(a:tokens(), kv:tokens())
    assert.same(b:tokens(), fork:tokens())
    assert.same(model:forward(a, 9):tolist(), model:forward(kv, 9):tolist())
    assert.same(model:forward(b, 9):tolist(), model:forward(fork, 9):tolist())
    assert.equal(10, #early)
    model:forward(early, 1)
  end)

  it("keeps a path only", function()
    fails("keep: position 10 is outside the tree's 11 … 14", kv.keep, kv, {10})
    fails("keep: position 15 is outside the tree's 11 … 14", kv.keep, kv, {11, 15})
    fails("keep: position 13 follows 11, not 12", kv.keep, kv, {11, 12, 13})
    fails("keep: position 12 follows 11, not 10", kv.keep, kv, {12})
    fails("positions[1] must be an integer, got 1.5", kv.keep, kv, {1.5})
    fails("positions must be an integer, a list of integers or an i32 tensor, got nil",
      kv.keep, kv)
    assert.equal(14, #kv)
    kv:keep {11, 13}
    assert.equal(12, #kv)
  end)

  it("is evaluated greedily in one pass as id by id", function()
    local plain <close> = filled(model, 10)
    kv:keep {}
    local want = model:forward(plain, {1, 2, 3}):argmax():item()
    local got = model:forward(kv, {1, 2, 3, 9, 9}, {parents = {0, 1, 2, 1, 0}, rows = "all"})
    assert.equal(want, got:row(3):argmax():item())
  end)
end)

describe("parents", function()
  local model, kv
  setup(function()
    model = h.tiny("llama-f32", {piece = 8, ctx = 64})
    kv = model:cache()
  end)
  teardown(function()
    kv:close()
    model:close()
  end)

  local function feed(kvs, ids, parents) model:forward(kvs, ids, {parents = parents}) end

  it("name an earlier id of the same cache", function()
    fails("parent 2 of id 2 is outside 0 … 1", feed, kv, {1, 2, 3}, {0, 2, 1})
    fails("parent -1 of id 1 is outside 0 … 0", feed, kv, {1}, {-1})
    local other <close> = model:cache()
    fails("parent 2 of id 1 is outside 0 … 0", feed, {kv, other}, {{1, 2}, {3, 4}}, {0, 1, 2, 1})
    fails("parents has 2 entries for 3 ids", feed, kv, {1, 2, 3}, {0, 1})
    assert.equal(0, #kv)
  end)

  it("make trees that fit one pass and the context", function()
    fails("trees of 9 candidates in one pass, at most 8 (piece)", feed, kv,
      {1, 2, 3, 4, 5, 6, 7, 8, 9}, {0, 0, 0, 0, 0, 0, 0, 0, 0})
    local full <close> = filled(model, 60)
    local ok, err = pcall(feed, full, {1, 2, 3, 4, 5}, {0, 0, 0, 0, 0})
    assert.is_true(not ok and err.kind == "cache_full" and err.message:find "60 of 64" ~= nil)
    assert.equal(60, #full)
  end)
end)
