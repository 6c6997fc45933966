-- Strategies that draw several texts and rank them: best_of_n, self_consistency, mbr.
local branches = require "llm.branches"
local metrics = require "llm.metrics"
local scripts = require "llm.scripts"
local h = require "spec.helper"
local jobs = require "spec.jobs"

local NAMES = {"best_of_n", "self_consistency", "mbr"}
local CHAINS = {"", "--temperature 0.7 --top-k 30", "--top-p 0.8 --repetition-penalty 1.3",
  "--min-tokens 20", "--temperature 0"}

-- Plain sampling with a stream of its own.
local STREAM = [[
  local kv, seq = model:cache(), llm.seq(prompt)
  seq.stream = %d
  local logits = model:forward(kv, prompt)
  while true do
    local id = opt.sampler(logits, {seq}):item()
    seq:push(id)
    if emit(id, {logits = logits}) then return end
    logits = model:forward(kv, id)
  end]]

local model

local function run(strategy, arguments, prompt, values)
  local result = jobs.run(model, strategy, arguments, prompt, values)
  assert(not result.error, result.error and result.error.message)
  return result
end

local function on_stream(i, arguments, prompt, values)
  return run(STREAM:format(i), arguments, prompt, values)
end

-- Outputs by the ids they have; equal ones stand in a list.
local function by_ids(outputs)
  local map = {}
  for _, output in ipairs(outputs) do
    local key = table.concat(output.ids, " ")
    map[key] = map[key] or {}
    table.insert(map[key], output)
  end
  return map
end

-- Runs a script with texts given instead of drawn ones.
local function rank_texts(name, texts, opt)
  local fake, real = setmetatable({}, {__index = branches}), package.loaded["llm.branches"]
  function fake.samples(_, _, _, _, rank)
    local list = {}
    for i, text in ipairs(texts) do
      list[i] = {text = text, n = 1, ids = function() return {i} end}
    end
    return rank(list)
  end
  package.loaded["llm.branches"] = fake
  local ok, strategy = pcall(scripts.load(assert(scripts.find(name))))
  package.loaded["llm.branches"] = real
  assert(ok, strategy)
  local order, scores = {}, {}
  for i, entry in ipairs(strategy.decode(nil, nil, opt)) do
    order[i], scores[i] = entry.ids[1], entry.score
  end
  return order, scores
end

describe("a strategy that draws several texts", function()
  setup(function() model = h.builtin {threads = 2} end)
  teardown(function() model:close() end)

  it("with one is sample, token for token, under every chain", function()
    for _, chain in ipairs(CHAINS) do
      local plain = run("sample", "-n 24 --seed 3 " .. chain)
      for _, name in ipairs(NAMES) do
        local one = run(name, "-n 24 --seed 3 --samples 1 " .. chain)
        assert.same(plain.ids, one.ids, name .. " " .. chain)
        assert.equal(plain.text, one.text)
        assert.equal(plain.finish, one.finish)
        assert.equal(1, #one.outputs)
      end
    end
  end)

  it("draws the i-th as plain sampling does with stream i", function()
    for _, chain in ipairs(CHAINS) do
      local arguments, wanted = "-n 20 --seed 8 " .. chain, {}
      for i = 1, 5 do wanted[i] = on_stream(i, arguments).outputs[1] end
      assert.same(run("sample", arguments).ids, wanted[1].ids)
      for _, name in ipairs(NAMES) do
        local outputs = run(name, "--samples 5 " .. arguments).outputs
        assert.equal(5, #outputs)
        local known = by_ids(outputs)
        for _, output in ipairs(wanted) do
          local same = table.remove(known[table.concat(output.ids, " ")] or {})
          assert(same, name .. " " .. chain)
          assert.equal(output.text, same.text)
          assert.equal(output.finish, same.finish)
        end
      end
    end
  end)

  it("goes on without those that are over", function()
    local full = run("sample", "-n 30 --seed 5").ids
    local arguments = ("-n 30 --seed 5 --eog %d,%d"):format(full[4], full[9])
    local ending <close> = h.builtin {threads = 2, eog = {full[4], full[9]}}
    local before = model
    model = ending
    local ok, message = pcall(function()
      local lengths = {}
      local outputs = by_ids(run("best_of_n", "--samples 6 " .. arguments).outputs)
      for i = 1, 6 do
        local wanted = on_stream(i, arguments)
        assert(outputs[table.concat(wanted.ids, " ")], i)
        lengths[#wanted.ids] = true
      end
      assert(next(lengths, (next(lengths))), "all end at once")
    end)
    model = before
    assert(ok, message)
  end)

  it("ends each text at stop texts, and scores it as it is then", function()
    local arguments = "-n 24 --seed 4 --stop e%20"
    local outputs, n_stopped = run("best_of_n", "--samples 5 " .. arguments).outputs, 0
    for i, output in ipairs(outputs) do
      assert.is_nil(output.text:find("e ", 1, true))
      n_stopped = n_stopped + (output.finish == "stop" and 1 or 0)
      local kv <close> = model:cache()
      local prompt = model:encode "And the LORD said unto"
      model:forward(kv, prompt)
      local mean = model:score(kv, output.ids):t():sum():item() / #output.ids
      assert(math.abs(mean - output.score) < 1e-4)
      assert(i == 1 or output.score <= outputs[i - 1].score)
    end
    assert(n_stopped > 1)
    local known = by_ids(outputs)
    for i = 1, 5 do assert(known[table.concat(on_stream(i, arguments).ids, " ")]) end
  end)

  it("obeys a stop rule, one of its own for each text", function()
    local rule = h.write(h.scratch "third.lua", [[
      local n = 0
      return function(ids)
        n = n + 1
        assert(n == #ids, "the rule of another text")
        return n == 3
      end]])
    for _, output in ipairs(run("best_of_n", "--samples 3 -n 9 --stop-rule " .. rule).outputs) do
      assert.equal(3, #output.ids)
      assert.equal("stop", output.finish)
    end
  end)

  it("makes one token, and fills the context", function()
    local small <close> = h.builtin {ctx = 12, eog = {}}
    local before = model
    model = small
    local ok, message = pcall(function()
      for _, name in ipairs(NAMES) do
        for _, output in ipairs(run(name, "--samples 3 -n 1").outputs) do
          assert.equal(1, #output.ids)
          assert.equal("length", output.finish)
        end
        local prompt = model:encode "And the LORD said unto"
        for _, output in ipairs(run(name, "--samples 3", prompt).outputs) do
          assert.equal(12 - #prompt + 1, #output.ids)
        end
        run(name, "--samples 2 -n 3", {prompt[1]})
      end
    end)
    model = before
    assert(ok, message)
  end)

  it("refuses more texts than a pass has rows, with both numbers", function()
    local narrow <close> = h.builtin {max_rows = 4}
    for _, name in ipairs(NAMES) do
      local result = jobs.run(narrow, name, "--samples 5 -n 4")
      assert.equal("misuse", result.error.kind)
      assert.equal("5 rows asked, --max-rows is 4", result.error.message)
      assert.is_nil(jobs.run(narrow, name, "--samples 4 -n 4").error)
    end
  end)

  it("gives its pages back", function()
    local before = llm.stats().pages_used
    for _, name in ipairs(NAMES) do run(name, "--samples 4 -n 40") end
    assert.equal(before, llm.stats().pages_used)
  end)

  it("makes the same texts whatever runs beside it", function()
    local list, alone = {}, {}
    for seed = 1, 3 do
      for _, name in ipairs(NAMES) do
        local arguments = ("--samples 3 -n 12 --seed %d"):format(seed)
        table.insert(list, jobs.make(model, name, arguments))
        table.insert(alone, run(name, arguments))
      end
    end
    for i, result in ipairs(jobs.run_all(list, 9)) do
      assert.same(alone[i].outputs, result.outputs)
    end
  end)

  it("tells what it has when its time is over", function()
    local result = jobs.run(model, "best_of_n", "--samples 3 -n 8", nil, {min_tokens = 0})
    local opt = {samples = 3}
    assert.equal(3, #result.outputs)
    local script = scripts.load(assert(scripts.find "best_of_n"))()
    local seen
    local function sampler(logits)
      if opt.partial then seen = opt.partial() end
      return logits:argmax()
    end
    opt.sampler, opt.max_tokens, opt.max_rows, opt.rank, opt.seed = sampler, 4, 8, "mean", 0
    script.decode(model, model:encode "In the beginning", opt)
    assert.equal(3, #seen)
    assert.equal(3, #seen[1].ids)
  end)
end)

describe("best_of_n", function()
  setup(function() model = h.builtin {threads = 2} end)
  teardown(function() model:close() end)

  it("ranks by mean or by sum of the model's log-probabilities", function()
    local orders = {}
    for _, rank in ipairs {"mean", "sum"} do
      local arguments = "--samples 6 -n 24 --seed 2 --temperature 1.2 --stop , --rank " .. rank
      local outputs = run("best_of_n", arguments).outputs
      for i, output in ipairs(outputs) do
        local kv <close> = model:cache()
        model:forward(kv, model:encode "And the LORD said unto")
        local sum = model:score(kv, output.ids):t():sum():item()
        local wanted = rank == "sum" and sum or sum / #output.ids
        assert(math.abs(wanted - output.score) < 1e-3)
        assert(i == 1 or output.score <= outputs[i - 1].score)
        orders[rank] = (orders[rank] or "") .. output.text .. "|"
      end
    end
    assert.not_equal(orders.mean, orders.sum)
  end)

  it("has as many texts as asked, 4 by default, the first of which stay", function()
    assert.equal(4, #run("best_of_n", "-n 8").outputs)
    local few = by_ids(run("best_of_n", "-n 8 --samples 2").outputs)
    local many = by_ids(run("best_of_n", "-n 8 --samples 7").outputs)
    for ids in pairs(few) do assert(many[ids]) end
  end)
end)

describe("self_consistency", function()
  local PATTERN = "-?%f[%d][%d,.]*%d"

  it("takes the answer that most texts give, drawn first among equals", function()
    local order, scores = rank_texts("self_consistency",
      {"so 7", "it is 12.", "no idea", "7, thus 12", "hence 7. No: 12!", "7"}, {answer = PATTERN})
    assert.same({2, 4, 5, 1, 6, 3}, order)
    assert.same({0.5, 0.5, 0.5, 2 / 6, 2 / 6, 0.0}, scores)
    assert.same({1, 2}, (rank_texts("self_consistency", {"is 3", "is 4"}, {answer = PATTERN})))
  end)

  it("compares numbers by value", function()
    local order, scores = rank_texts("self_consistency",
      {"$1,234,567.", "1234567.0", "1234567", "-5", "a 0.50", ".5"}, {answer = PATTERN})
    assert.same({1, 2, 3, 4, 5, 6}, order)
    assert.equal(0.5, scores[1])
    assert.same({1 / 6, 1 / 6}, {scores[4], scores[5]})
  end)

  it("reads the capture of the pattern, without spaces around it", function()
    local order, scores = rank_texts("self_consistency",
      {"Answer: no", "Answer: yes\n", "answer yes", "Answer:   yes. Answer: yes"},
      {answer = "Answer:([%w ]+)"})
    assert.same({2, 4, 1, 3}, order)
    assert.same({0.5, 0.5, 0.25, 0.0}, scores)
  end)

  it("refuses what is no pattern, by name", function()
    local ok, message = pcall(rank_texts, "self_consistency", {"a(b"}, {answer = "(["})
    assert.is_false(ok)
    assert.equal("input", message.kind)
    assert.truthy(tostring(message):find("answer: '([' is no Lua pattern: malformed", 1, true))
  end)

  it("counts the votes of texts that plain sampling draws", function()
    model = h.builtin {threads = 2}
    local arguments = "-n 24 --seed 6"
    local votes, answers = {}, {}
    for i = 1, 8 do
      local text, answer = on_stream(i, arguments).text, nil
      for word in text:gmatch "the (%a+)" do answer = word end
      answers[i] = answer or ""
      if answer then votes[answer] = (votes[answer] or 0) + 1 end
    end
    local most = 0
    for _, n in pairs(votes) do most = math.max(most, n) end
    local result = run("self_consistency", arguments, nil, {answer = "the (%a+)"})
    assert.equal(most / 8, result.score)
    for i, answer in ipairs(answers) do
      if votes[answer] == most then
        assert.same(on_stream(i, arguments).ids, result.ids)
        break
      end
    end
    local other = run("self_consistency", arguments, nil, {answer = "%f[%a]%a"})
    assert.not_same(result.outputs, other.outputs)
    assert.equal(8, #result.outputs)
    model:close()
  end)
end)

describe("mbr", function()
  setup(function() model = h.builtin {threads = 2} end)
  teardown(function() model:close() end)

  local utilities = {
    chrf = metrics.chrf,
    edit = function(a, b) return 1 - metrics.edit_distance(a, b) / math.max(#a, #b) end, -- ASCII
    exact = function(a, b) return a == b and 1 or 0 end,
  }

  it("scores a text by its mean utility over all texts", function()
    local orders = {}
    for name, utility in pairs(utilities) do
      local result = run("mbr", "-n 12 --samples 6 --seed 1 --temperature 0.5 --utility " .. name)
      local last = math.huge
      for _, output in ipairs(result.outputs) do
        local sum = 0
        for _, other in ipairs(result.outputs) do sum = sum + utility(output.text, other.text) end
        assert(math.abs(sum / 6 - output.score) < 1e-9)
        assert(output.score <= last)
        last = output.score
        orders[name] = (orders[name] or "") .. ("%.9f "):format(output.score)
      end
    end
    assert.not_equal(orders.chrf, orders.edit)
    assert.not_equal(orders.chrf, orders.exact)
  end)

  it("is chrF by default, of 8 texts", function()
    assert.same(run("mbr", "-n 9 --samples 8 --utility chrf").outputs, run("mbr", "-n 9").outputs)
  end)

  it("takes the text in the middle", function()
    local texts = {"the cat sat", "dogs", "the cat sits", "the cat sat on it", "the cat sat on"}
    local order = rank_texts("mbr", texts, {utility = "edit"})
    assert.equal(5, order[1])
    assert.equal(2, order[5])
    assert.same({2, 3, 1}, (rank_texts("mbr", {"a", "b", "b"}, {utility = "exact"})))
  end)
end)
