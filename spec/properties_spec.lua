-- What must hold whatever the model: no golden values here.
local h = require "spec.helper"
local llm = require "llm"

local text = {8, 195, 107, 201, 307, 11, 99, 241, 53, 265, 123, 299, 70, 82, 294, 118, 243, 90, 261,
  53, 17, 4, 200, 180, 77, 13, 250, 66, 31, 9, 140, 2, 55, 88, 19, 233, 174, 5, 61, 302, 33, 44}

local function rows(model, kv, ids, opts) return model:forward(kv, ids, opts):lists() end

local function last(model, ids)
  local kv <close> = model:cache()
  return rows(model, kv, ids)[1]
end

local function slice(list, first, count)
  return table.move(list, first, first + count - 1, 1, {})
end

local function models()
  local list = {}
  for _, device in ipairs {"ref", "cpu"} do
    local names = {"llama-f32", "llama-q4_1", "llama-q8_0", "llama256-q4_k_m", "gemma3-f32",
      "qwen3-f16", "gpt2-f32"}
    for _, name in ipairs(names) do
      list[#list + 1] = {name .. " on " .. device, name, device}
    end
  end
  list[#list + 1] = {"built-in on cpu", nil, "cpu"}
  return list
end

for _, entry in ipairs(models()) do
  local title, name, device = entry[1], entry[2], entry[3]
  local function open(opts)
    opts = opts or {}
    opts.device = device
    return name and h.tiny(name, opts) or h.builtin(opts)
  end

  describe(title, function()
    local model
    setup(function() model = open() end)
    teardown(function() model:close() end)

    it("gives the same logits in one prefill, in pieces and id by id", function()
      local kv <close> = model:cache()
      local whole = rows(model, kv, text, {rows = "all"})
      local pieces <close> = model:cache()
      local at = 1
      for _, n in ipairs {1, 5, 26, 3, 7} do
        local got = rows(model, pieces, slice(text, at, n), {rows = "all"})
        for i = 1, n do assert.same(whole[at + i - 1], got[i]) end
        at = at + n
      end
      local small <close> = open {piece = 5}
      local small_kv <close> = small:cache()
      assert.same(whole, rows(small, small_kv, text, {rows = "all"}))
    end)

    it("gives a sequence the same logits alone and in a batch", function()
      local kvs, alone, ids = {}, {}, {}
      for i = 1, 9 do
        kvs[i], ids[i] = model:cache(), slice(text, i, 3 * i)
        alone[i] = last(model, ids[i])
      end
      assert.same(alone, rows(model, kvs, ids))
      for i = 1, 9 do alone[i] = rows(model, kvs[i]:fork(), text[i])[1] end
      assert.same(alone, rows(model, kvs, slice(text, 1, 9)))
      for i = 1, 9 do kvs[i]:close() end
    end)

    it("gives the same logits on 1, 2 and 3 threads", function()
      local one = last(model, text)
      for threads = 2, 3 do
        local other <close> = open {threads = threads}
        assert.same(one, last(other, text))
      end
    end)

    it("fork then diverge equals two fresh runs", function()
      local kv <close> = model:cache()
      model:forward(kv, slice(text, 1, 20))
      local fork <close> = kv:fork()
      local a, b = slice(text, 21, 5), slice(text, 30, 9)
      local got_a, got_b = rows(model, kv, a)[1], rows(model, fork, b)[1]
      local whole_a, whole_b = slice(text, 1, 25), slice(text, 1, 20)
      table.move(b, 1, #b, 21, whole_b)
      assert.same(last(model, whole_a), got_a)
      assert.same(last(model, whole_b), got_b)
      assert.same(whole_a, kv:tokens())
      assert.same(whole_b, fork:tokens())
    end)

    it("truncate then re-feed equals never truncated", function()
      local kv <close> = model:cache()
      model:forward(kv, text)
      local whole = last(model, text)
      for _, n in ipairs {0, 1, 31, 32, 33, 41} do
        kv:truncate(n)
        assert.equal(n, #kv)
        assert.same(whole, rows(model, kv, slice(text, n + 1, #text - n))[1])
      end
      local first <close> = kv:fork(7)
      assert.same(last(model, slice(text, 1, 12)), rows(model, first, slice(text, 8, 5))[1])
    end)

    it("sync keeps the common prefix and returns the rest", function()
      local kv <close> = model:cache()
      model:forward(kv, text)
      local other = slice(text, 1, 30)
      other[18] = (text[18] + 1) % 300
      local rest = kv:sync(other)
      assert.same(slice(other, 18, 13), rest)
      assert.same(last(model, other), rows(model, kv, rest)[1])
      assert.same({other[30]}, kv:sync(other))
    end)

    it("score equals the log-softmax of the rows before", function()
      local kv <close> = model:cache()
      local logits = model:forward(kv, text, {rows = "all"}):log_softmax():lists()
      local scored <close> = model:cache()
      model:forward(scored, text[1])
      local got = model:score(scored, slice(text, 2, #text - 1)):tolist()
      for i = 1, #got do assert.is_true(math.abs(got[i] - logits[i][text[i + 1] + 1]) < 1e-4) end
      assert.same(text, scored:tokens())
      assert.same(rows(model, kv, 5)[1], rows(model, scored, 5)[1])
    end)

    it("hidden rows through the head are the logits", function()
      local kv <close> = model:cache()
      local opts = {rows = "all", hidden = {0, 1, model.n_layers}}
      local logits, hidden = model:forward(kv, slice(text, 1, 9), opts)
      assert.same(logits:lists(), model:logits(hidden[model.n_layers]):lists())
      assert.equal(9, hidden[0].n_rows)
      assert.equal(model.width, hidden[1].n_columns)
      local _, twice = model:forward(kv, slice(text, 1, 2), {hidden = {1, 0, 1, 1}})
      assert.equal(2, twice[1].n_rows)
    end)

    it("an early exit is the head on that layer's rows, and refuses a deeper pass", function()
      if model.n_layers < 2 then return end
      local kv <close> = model:cache()
      local early = model:forward(kv, slice(text, 1, 9), {exit = 1, rows = "all"})
      local whole <close> = model:cache()
      local _, hidden = model:forward(whole, slice(text, 1, 9), {hidden = {1}})
      assert.same(model:logits(hidden[1]):lists(), early:lists())
      assert.same(rows(model, whole, 7, {exit = 1}), rows(model, kv, 7, {exit = 1}))
      local ok, err = pcall(model.forward, model, kv, 7)
      assert.is_false(ok)
      assert.equal("misuse", err.kind)
      kv:truncate(0)
      assert.same(last(model, slice(text, 1, 9)), rows(model, kv, slice(text, 1, 9))[1])
    end)

    it("save and restore continues as if uninterrupted", function()
      local path = h.scratch("cache.kv")
      local kv <close> = model:cache()
      model:forward(kv, slice(text, 1, 37))
      assert(kv:save(path))
      local again <close> = assert(model:restore(path))
      assert.same(kv:tokens(), again:tokens())
      assert.same(rows(model, kv, slice(text, 38, 4)), rows(model, again, slice(text, 38, 4)))
    end)

    it("1,000 forks and closes return every page", function()
      collectgarbage()
      local before = llm.stats().pages_used
      do
        local kv <close> = model:cache()
        model:forward(kv, text)
        local forks = {}
        for i = 1, 1000 do
          forks[i] = kv:fork(1 + i % #text)
          if i % 100 == 0 then model:forward(forks[i], 1) end
        end
        for i = 1, 1000 do forks[i]:close() end
      end
      assert.equal(before, llm.stats().pages_used)
    end)

    it("reorder continues the rows chosen", function()
      local kvs = {model:cache(), model:cache(), model:cache()}
      local starts = {slice(text, 1, 5), slice(text, 6, 5), slice(text, 11, 5)}
      model:forward(kvs, starts)
      kvs = llm.reorder(kvs, {3, 1, 3})
      local got = rows(model, kvs, {7, 8, 9})
      for i, row in ipairs {3, 1, 3} do
        local ids = slice(starts[row], 1, 5)
        ids[6] = 6 + i
        assert.same(last(model, ids), got[i])
        kvs[i]:close()
      end
    end)
  end)
end

describe("a failed call", function()
  it("leaves the cache as it was when the context is full", function()
    local model <close> = h.tiny("llama-q8_0", {ctx = 40})
    local kv <close> = model:cache()
    model:forward(kv, slice(text, 1, 30))
    local ok, err = pcall(model.forward, model, kv, slice(text, 31, 12))
    assert.is_false(ok)
    assert.equal("cache_full", err.kind)
    assert.equal("cache full: 30 of 40 positions used, 12 requested", err.message)
    assert.equal(30, #kv)
    assert.same(last(model, slice(text, 1, 33)), rows(model, kv, slice(text, 31, 3))[1])
  end)

  it("leaves every cache of a batch as it was when pages run out", function()
    local model <close> = h.tiny("llama-q8_0", {pages = 4})
    local kvs = {model:cache(), model:cache(), model:cache()}
    model:forward(kvs, {slice(text, 1, 30), slice(text, 1, 20), slice(text, 1, 5)})
    local ok, err = pcall(model.forward, model, kvs, {slice(text, 1, 5), slice(text, 1, 20), 1})
    assert.is_false(ok)
    assert.equal("cache_full", err.kind)
    assert.same({30, 20, 5}, {#kvs[1], #kvs[2], #kvs[3]})
    assert.same(last(model, slice(text, 1, 31)), rows(model, kvs[1], text[31])[1])
    for i = 1, 3 do kvs[i]:close() end
  end)

  it("names the rows asked for and the limit", function()
    local model <close> = h.tiny("llama-q8_0", {max_rows = 8})
    local kv <close> = model:cache()
    local ok, err = pcall(model.forward, model, kv, slice(text, 1, 9), {rows = "all"})
    assert.is_false(ok)
    assert.equal("9 rows asked, --max-rows is 8", err.message)
    assert.equal(0, #kv)
  end)

  it("refuses a context beyond learned positions", function()
    local model, message = llm.load(h.data .. "models/gpt2-f32.gguf", {ctx = 4096})
    assert.is_nil(model)
    assert.truthy(message:find("128 learned positions", 1, true))
  end)

  it("warns of a context beyond the trained one", function()
    local model <close> = h.tiny("llama-q8_0", {ctx = 1000})
    assert.truthy(model.warning:find("1000 positions", 1, true))
    assert.truthy(model.warning:find("256", 1, true))
  end)
end)

describe("a save file", function()
  local function saved(model)
    local kv <close> = model:cache()
    model:forward(kv, slice(text, 1, 10))
    local path = h.scratch("one.kv")
    assert(kv:save(path))
    return path
  end

  it("of another model is refused by name", function()
    local a <close> = h.tiny("llama-q8_0")
    local b <close> = h.tiny("llama-q4_0")
    local kv, message = b:restore(saved(a))
    assert.is_nil(kv)
    assert.truthy(message:find("another model", 1, true))
    assert.truthy(message:find("llama-q4_0", 1, true))
  end)

  it("that is damaged or cut anywhere is refused and leaves no page behind", function()
    local model <close> = h.tiny("llama-q8_0")
    local bytes = h.read(saved(model))
    collectgarbage()
    local before = llm.stats().pages_used
    for _, n in ipairs {0, 1, 7, 8, 40, 71, 72, 90, #bytes // 2, #bytes - 1} do
      assert.is_nil((model:restore(h.write(h.scratch("cut.kv"), bytes:sub(1, n)))))
    end
    for _, i in ipairs {3, 9, 13, 20, 33, 45, 60, 75, 100, #bytes - 20, #bytes} do
      local bad = bytes:sub(1, i - 1) .. string.char(bytes:byte(i) ~ 0x41) .. bytes:sub(i + 1)
      assert.is_nil((model:restore(h.write(h.scratch("bad.kv"), bad))))
    end
    assert.is_nil((model:restore(h.scratch("absent.kv"))))
    assert.is_nil((model:restore(".")))
    assert.equal(before, llm.stats().pages_used)
  end)

  it("may hold no token, and takes the place of what a killed process left", function()
    local model <close> = h.tiny("llama-q8_0")
    local kv <close> = model:cache()
    local path, stat = h.scratch("empty.kv"), assert(io.open "/proc/self/stat")
    h.write(("%s.%d.part"):format(path, stat:read "n"), "left")
    stat:close()
    assert(kv:save(path))
    local again <close> = assert(model:restore(path))
    assert.equal(0, #again)
  end)

  it("follows a link, and goes into what is no regular file without replacing it", function()
    local model <close> = h.tiny("llama-q8_0")
    local kv <close> = model:cache()
    model:forward(kv, slice(text, 1, 10))
    local file, link = h.scratch("target.kv"), h.scratch("link.kv")
    h.write(file, "")
    assert(os.execute(("ln -sf '%s' '%s'"):format(file, link)))
    assert(kv:save(link))
    assert(os.execute(("test -L '%s'"):format(link)))
    local again <close> = assert(model:restore(file))
    assert.same(kv:tokens(), again:tokens())
    if os.execute "test -c /dev/full" then
      local ok, message = kv:save("/dev/full")
      assert.is_nil(ok)
      assert.truthy(message:find("/dev/full", 1, true))
      assert(os.execute "test -c /dev/full")
    end
  end)

  it("that cannot be written is an error and leaves no file", function()
    local model <close> = h.tiny("llama-q8_0")
    local kv <close> = model:cache()
    model:forward(kv, slice(text, 1, 10))
    local ok, message = kv:save(h.scratch("no-such-folder/x.kv"))
    assert.is_nil(ok)
    assert.truthy(message:find("no-such-folder", 1, true))
  end)
end)
