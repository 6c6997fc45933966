-- Jobs side by side: each ends as it would alone, whatever its neighbours do.
local json = require "llm.json"
local llm = require "llm"
local jobs = require "spec.jobs"
local h = require "spec.helper"

local PROMPTS = {"And the LORD said unto", "In the beginning", "The king", "And it came to pass",
  "Behold", "And the LORD said unto Moses, Go", "Now these are the names"}

-- The line of a result, without its times.
local function line(result)
  local timings = result.timings
  result.timings = nil
  local text = json.encode(result)
  result.timings = timings
  return text
end

local NESTED = [[
  local function steps()
    local kv = model:cache()
    local logits = model:forward(kv, prompt)
    while true do
      local id = logits:argmax():item()
      coroutine.yield(id)
      logits = model:forward(kv, id)
    end
  end
  for id in coroutine.wrap(steps) do
    if emit(id) then return end
  end
]]

local IN_COMPARATOR = [[
  local kv, ids = model:cache(), {3, 1, 2}
  model:forward(kv, prompt)
  local score = {}
  table.sort(ids, function(a, b)
    for _, id in ipairs {a, b} do
      if not score[id] then
        local fork <close> = kv:fork()
        score[id] = model:forward(fork, id):max():item()
      end
    end
    return score[a] > score[b]
  end)
  for _, id in ipairs(ids) do
    if emit(id) then return end
  end
]]

describe("jobs side by side", function()
  local model
  setup(function() model = h.builtin() end)
  teardown(function() model:close() end)

  local function make(strategy, arguments, i, values, more)
    return jobs.make(model, strategy, arguments, PROMPTS[i % #PROMPTS + 1], values, more)
  end

  for _, case in ipairs {{"greedy", "-n 12"}, {"sample", "-n 12 --temperature 0.9 --top-k 40"},
    {"beam", "-n 8 --beam 3"}, {NESTED, "-n 10"}, {IN_COMPARATOR, "-n 3"}} do
    it("give the lines that each gives alone: " .. case[1]:match "%w+" .. " " .. case[2], function()
      local alone = {}
      for i = 1, 9 do alone[i] = line(jobs.run(model, case[1], case[2], PROMPTS[i % 7 + 1])) end
      for _, n in ipairs {1, 3, 9} do
        local list = {}
        for i = 1, 9 do list[i] = make(case[1], case[2], i) end
        for i, result in ipairs((jobs.run_all(list, n))) do
          assert.is_nil(result.error)
          assert.equal(alone[i], line(result))
        end
      end
    end)
  end

  it("share passes: eight of them need few more than one", function()
    local function passes(n)
      local before, list = llm.stats().passes, {}
      for i = 1, n do list[i] = make("greedy", "-n 12", i, {}) end
      jobs.run_all(list, 8)
      return llm.stats().passes - before
    end
    assert(passes(8) <= passes(1) + 3)
  end)

  it("share passes from coroutines of their own", function()
    local before, list = llm.stats().passes, {}
    for i = 1, 6 do list[i] = make(NESTED, "-n 10", i) end
    jobs.run_all(list, 6)
    assert(llm.stats().passes - before <= 14)
  end)

  it("share the passes of each model where they have two", function()
    local other = h.tiny "llama-f32"
    local source = [[return {options = {other = {type = "model"}},
    decode = function(model, prompt, opt, emit)
      local kv, second = model:cache(), opt.other:cache()
      local logits = model:forward(kv, prompt)
      while true do
        local id = logits:argmax():item()
        local hint = opt.other:forward(second, id % opt.other.vocab_size):argmax():item()
        if emit((id + hint) % model.vocab_size) then return end
        logits = model:forward(kv, id)
      end
    end}]]
    local list, alone = {}, {}
    for i = 1, 5 do
      alone[i] = line(jobs.run(model, source, "-n 8", PROMPTS[i], {other = other}))
      list[i] = jobs.make(model, source, "-n 8", PROMPTS[i], {other = other})
    end
    local before = llm.stats().passes
    for i, result in ipairs((jobs.run_all(list, 5))) do assert.equal(alone[i], line(result)) end
    assert(llm.stats().passes - before <= 20)
    other:close()
  end)

  it("keep their pace beside a long prefill", function()
    local narrow = h.builtin {piece = 32, eog = {}}
    local long, emitted, at_end = {}, 0, nil
    for i = 1, 400 do long[i] = i * 37 % 1000 + 3 end
    local short = jobs.make(narrow, "greedy", "-n 40", {5, 6, 7}, nil,
      {rule = function() emitted = emitted + 1 end})
    local other = jobs.make(narrow, "greedy", "-n 1", long, nil,
      {rule = function() at_end = emitted end})
    local alone = line(jobs.run(narrow, "greedy", "-n 1", long))
    local results = jobs.run_all({short, other}, 2)
    assert(at_end >= 10, at_end)
    assert.equal(alone, line(results[2]))
    narrow:close()
  end)

  it("end in any order and start when a place is free", function()
    local list = {}
    for i = 1, 6 do list[i] = make("greedy", "-n " .. (i % 2 == 0 and 2 or 20), i) end
    local results, order = jobs.run_all(list, 2)
    assert.equal(6, #results)
    assert.same(2, order[1])
  end)

  it("fail alone, with the traceback", function()
    local list = {}
    for i = 1, 8 do list[i] = make("greedy", "-n 6", i) end
    list[4] = make("local kv = model:cache() model:forward(kv, prompt) error('no luck')", "-n 6", 4)
    list[6] = make("local kv = model:cache() model:forward(kv, prompt) x = 1", "-n 6", 6)
    list[7] = make("emit(model:forward(model:cache(), prompt):mask(model:forward(model:cache(), 1)"
      .. ":topk(model.vocab_size)):argmax())", "-n 6", 7)
    local results = jobs.run_all(list, 8)
    for i, result in ipairs(results) do
      if i == 4 then
        assert.equal("script", result.error.kind)
        assert(result.error.message:find "no luck")
        assert(result.error.traceback:find "test.lua:1")
      elseif i == 6 then
        assert(result.error.message:find "global 'x' written")
      elseif i ~= 7 then
        assert.is_nil(result.error)
      else
        assert.is_table(result.error)
      end
    end
  end)

  it("cannot end the program, nor write between the lines of results", function()
    local list = {make("os.exit( 3)", "", 1), make("greedy", "-n 3", 2)}
    local results = jobs.run_all(list, 2)
    assert(results[1].error.message:find "os.exit in a strategy")
    assert.is_nil(results[2].error)
    local script = h.write(h.scratch "chatty.lua", [[
      return {decode = function(model, prompt, opt, emit)
        print("hello", nil, 3)
        emit(65)
      end}]])
    local out, err = h.run(script .. " -n 1 -p x")
    assert.equal(model:decode {65} .. "\n", out)
    assert(err:find "hello\tnil\t3\n")
  end)

  it("stop for no one: neither what is said of an error nor what closes holds them up", function()
    local LOOP = "setmetatable({}, {%s = function() while true do end end})"
    local bodies = {
      "error(" .. LOOP:format "__tostring" .. ")",
      "error({field = " .. LOOP:format "__tostring" .. "})",
      "error(setmetatable({}, {__pairs = function() error 'p' end}))",
      "function opt.partial() while true do end end error('x')",
      "return {{ids = " .. LOOP:format "__index" .. "}}",
      "local co = coroutine.wrap(function() local x <close> = " .. LOOP:format "__close"
        .. " coroutine.yield() end) co()",
      "debug.sethook() while true do end",
      "table.concat, string.format = nil, nil error('x')",
      "model:close()",
    }
    local list = {}
    for i, body in ipairs(bodies) do
      list[2 * i - 1] = make(body .. " ", "", i, nil, {max_seconds = 0.2})
      list[2 * i] = make("greedy", "-n 3", i)
    end
    local results = jobs.run_all(list, 4)
    for i = 1, #bodies do assert.is_nil(results[2 * i].error) end
    for _, i in ipairs {1, 2, 3, 4, 5, 7, 8, 9} do
      assert.is_table(results[2 * i - 1].error, bodies[i])
    end
  end)

  it("leave no page behind, however they end", function()
    local list, base = {}, llm.stats().pages_used
    for i = 1, 6 do list[i] = make("greedy", "-n 6", i) end
    list[3] = make("KV = model:cache()", "-n 6", 3)
    list[5] = make("local kv = model:cache() model:forward(kv, prompt) error('x')", "-n 6", 5)
    jobs.run_all(list, 4)
    assert.equal(base, llm.stats().pages_used)
  end)

  it("are ended by max_seconds, also where they call nothing and catch all errors", function()
    local list = {}
    for i = 1, 5 do list[i] = make("greedy", "-n 6", i) end
    list[2] = make("while true do pcall(function() while true do end end) end", "", 2, nil,
      {max_seconds = 0.2})
    list[4] = make("local kv = model:cache() while true do pcall(model.forward, model, kv, 1) "
      .. "kv:truncate(0) end", "", 4, nil, {max_seconds = 0.3})
    local results = jobs.run_all(list, 5)
    for i, result in ipairs(results) do
      if i == 2 or i == 4 then
        assert.equal("time", result.error.kind)
      else
        assert.is_nil(result.error)
      end
    end
  end)

  it("learn from emit that their time is over", function()
    local slow = [[
      local kv = model:cache()
      local logits = model:forward(kv, prompt)
      for _ = 1, 1000000 do
        local t = os.clock() while os.clock() - t < 0.01 do end
        if emit(logits:argmax()) == "time" then return end
      end
    ]]
    local result = jobs.run(model, slow, "--ignore-eog -n 10000", "The", nil, {max_seconds = 0.1})
    assert.is_nil(result.error)
    assert.equal("time", result.finish)
    assert(#result.ids > 0 and #result.ids < 100)
  end)

  it("close their coroutines innermost first, then themselves, then their caches", function()
    local log = {}
    package.loaded.spec_log = log
    local result = jobs.run(model, [[
      local log = require "spec_log"
      local function guard(name, kv)
        return setmetatable({}, {__close = function()
          log[#log + 1] = name .. (#kv > 2 and "" or " too late")
        end})
      end
      local kv = model:cache()
      model:forward(kv, prompt)
      local outer <close> = guard("outer", kv)
      local co = coroutine.wrap(function()
        local inner <close> = guard("inner", kv)
        local nested = coroutine.wrap(function()
          local innermost <close> = guard("innermost", kv)
          while true do model:forward(kv, 1) kv:truncate(#kv - 1) end
        end)
        nested()
      end)
      co()
    ]], "", {1, 2, 3}, nil, {max_seconds = 0.1})
    package.loaded.spec_log = nil
    assert.equal("time", result.error.kind)
    assert.same({"innermost", "inner", "outer"}, log)
  end)

  it("take the pages of a prompt that began alike", function()
    local text = ("And the LORD said unto Moses, Go in unto Pharaoh. "):rep(12)
    local list, alone = {}, {}
    for i = 1, 5 do
      local prompt = model:encode(text .. PROMPTS[i])
      alone[i] = line(jobs.run(model, "greedy", "-n 6", prompt))
      list[i] = jobs.make(model, "greedy", "-n 6", prompt)
    end
    local shared = #model:encode(text)
    local rows, before = llm.stats().forward_rows, llm.stats().prefix_tokens
    local results = jobs.run_all(list, 5)
    rows = llm.stats().forward_rows - rows
    for i, result in ipairs(results) do
      assert.equal(alone[i], line(result))
      if i > 1 then assert(result.timings.prefix_tokens >= shared - 64) end
    end
    assert(rows < 2 * shared + 5 * 40, rows)
    assert(llm.stats().prefix_tokens - before >= 4 * (shared - 64))
  end)
end)

describe("jobs with few pages", function()
  local wide, narrow
  setup(function()
    wide = h.builtin {ctx = 256, eog = {}}
    narrow = h.builtin {ctx = 256, pages = 12, swap_pages = 0, eog = {}}
  end)
  teardown(function()
    wide:close()
    narrow:close()
  end)

  for _, case in ipairs {{"greedy", "-n 80"}, {"beam", "-n 40 --beam 3"},
    {"sample", "-n 60 --temperature 0.8"}} do
    it("set the newest aside and recompute it: " .. case[1], function()
      local list, alone, recomputed = {}, {}, 0
      for i = 1, 8 do
        local values = nil
        alone[i] = line(jobs.run(wide, case[1], case[2], PROMPTS[i % 7 + 1], values))
        list[i] = jobs.make(narrow, case[1], case[2], PROMPTS[i % 7 + 1], values)
      end
      for i, result in ipairs((jobs.run_all(list, 8))) do
        assert.is_nil(result.error, result.error and result.error.message)
        assert.equal(alone[i], line(result))
        recomputed = recomputed + result.timings.recomputed_tokens
      end
      assert(recomputed > 0)
      assert.equal(0, llm.stats().pages_used)
    end)
  end

  it("come to an end where the pages are hardly enough for one", function()
    for _, pages in ipairs {11, 12, 14, 18} do
      local model, list = h.builtin {ctx = 128, pages = pages, eog = {}}, {}
      for i = 1, 4 do
        list[i] = jobs.make(model, "beam", "-n 40 --beam 5", PROMPTS[i], nil, {max_seconds = 60})
      end
      local before = llm.stats().passes
      for i, result in ipairs((jobs.run_all(list, 4))) do
        assert.is_nil(result.error)
        assert.equal(line(jobs.run(wide, "beam", "-n 40 --beam 5", PROMPTS[i])), line(result))
      end
      assert(llm.stats().passes - before < 1000)
      model:close()
    end
  end)

  it("fail only where one alone does not fit", function()
    local list = {}
    for i = 1, 4 do list[i] = jobs.make(narrow, "greedy", "-n 4", PROMPTS[i]) end
    local long = {}
    for i = 1, 250 do long[i] = i % 50 + 3 end
    list[2] = jobs.make(narrow, [[
      local kvs = {model:cache(), model:cache()}
      for _, kv in ipairs(kvs) do model:forward(kv, prompt) end
    ]], "-n 4", long)
    for i, result in ipairs((jobs.run_all(list, 4, {share = false}))) do
      if i == 2 then
        assert.equal("cache_full", result.error.kind)
      else
        assert.is_nil(result.error)
      end
    end
  end)
end)
