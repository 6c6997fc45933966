-- Strategies that search: entropy_branch, tree_of_thought, mcts; each is held against the plain
-- algorithm, which computes every step anew.
local h = require "spec.helper"
local jobs = require "spec.jobs"
local s = require "spec.strategies"

local CHAINS, PROMPT = s.chains, s.prompt
local run, join, logits_of, mean_of = s.run, s.join, s.logits_of, s.mean_of
local near, contains, check_options, with_model = s.near, s.contains, s.check_options, s.with_model

describe("entropy_branch", function()
  setup(s.open)
  teardown(s.close)

  -- Every branch computed anew at every step.
  local function branch_by_hand(prompt, threshold, fan, most, n)
    local kept = {{ids = {}, sum = 0}}
    while true do
      local all, any = {}, false
      for _, branch in ipairs(kept) do
        if branch.over then
          table.insert(all, branch)
        else
          any = true
        end
      end
      if not any then return kept end
      for _, branch in ipairs(kept) do
        local row = not branch.over and logits_of(join(prompt, branch.ids))
        local forks = row and row:entropy():item() > threshold and fan or 1
        local logprobs = row and row:log_softmax():tolist()
        local ids = row and select(2, row:topk(forks)):tolist() or {}
        for _, id in ipairs(ids) do
          local child = {ids = join(branch.ids, {id}), sum = branch.sum + logprobs[id + 1]}
          child.over = s.model:is_eog(id) or #child.ids == n
          table.insert(all, child)
        end
      end
      table.sort(all, function(a, b) return a.sum / #a.ids > b.sum / #b.ids end)
      kept = table.move(all, 1, most, 1, {})
    end
  end

  it("with a threshold that nothing reaches is greedy", function()
    for _, chain in ipairs(CHAINS) do
      local plain = run("greedy", "-n 20 " .. chain)
      local result = run("entropy_branch", "-n 20 --threshold 1e9 " .. chain)
      assert.same(plain.ids, result.ids)
      assert.equal(1, #result.outputs)
      assert.same(plain.ids, run("entropy_branch", "-n 20 --fan 1 --threshold 0 " .. chain).ids)
    end
  end)

  it("with one branch is greedy: the likeliest child is best", function()
    assert.same(run("greedy", "-n 20").ids,
      run("entropy_branch", "-n 20 --threshold 0 --fan 5 --branches 1").ids)
  end)

  it("forks where the entropy is high and keeps the best by mean log-probability", function()
    local prompt = s.model:encode(PROMPT)
    for _, case in ipairs {{2.0, 2, 4}, {3.0, 3, 3}, {0.0, 2, 5}, {1.5, 4, 2}} do
      local threshold, fan, most = table.unpack(case)
      local wanted = branch_by_hand(prompt, threshold, fan, most, 12)
      local result = run("entropy_branch", ("-n 12 --threshold %s --fan %d --branches %d")
        :format(threshold, fan, most))
      assert.equal(#wanted, #result.outputs)
      for i, output in ipairs(result.outputs) do
        assert.same(wanted[i].ids, output.ids)
        near(wanted[i].sum / #wanted[i].ids, output.score)
        near(mean_of(prompt, output.ids), output.score)
      end
    end
  end)

  it("keeps branches that are over beside those that go on", function()
    local outputs = run("entropy_branch", "-n 24 --stop , --branches 4 --threshold 1").outputs
    local lengths = {}
    for _, output in ipairs(outputs) do
      lengths[#output.ids] = true
      assert(not contains(output.text, ","))
    end
    assert(next(lengths, (next(lengths))))
  end)

  it("never forks where the chain leaves one token", function()
    assert.equal(1, #run("entropy_branch", "-n 9 --threshold 0 --fan 4 --top-k 1").outputs)
    local outputs = run("entropy_branch", "-n 9 --threshold 0 --fan 4 --top-k 2").outputs
    for _, output in ipairs(outputs) do assert(output.score > -math.huge) end
  end)

  it("changes with each option", function()
    check_options("entropy_branch", {max_tokens = 12}, PROMPT,
      {threshold = {0.0, 3.0, 1e9}, fan = {1, 2, 3}, branches = {1, 2, 4}})
  end)
end)

describe("tree_of_thought", function()
  setup(s.open)
  teardown(s.close)

  local stops -- tokens that end a thought

  -- Draws n more tokens at most, up to one in stops; a text: {ids, stream, over}.
  local function think(prompt, text, n, seed, most)
    local ids = join(text.ids, {})
    while true do
      local row = logits_of(join(prompt, ids))
      local id = row:sample({llm.rng(seed):fork(text.stream):at(#ids + 1)}):item()
      table.insert(ids, id)
      local over = s.model:is_eog(id) or #ids == most
      if over or stops[s.model:token(id)] or #ids == #text.ids + n then
        return {ids = ids, stream = text.stream, over = over}
      end
    end
  end

  local function by_hand(prompt, value, breadth, samples, depth, length, seed, most)
    local kept, n_streams = {{ids = {}, stream = 1}}, 1
    local function rank(list)
      for i, text in ipairs(list) do text.value, text.place = value(text.ids), i end
      table.sort(list, function(a, b)
        if a.value ~= b.value then return a.value > b.value end
        return a.place < b.place
      end)
      return list
    end
    for _ = 1, depth do
      local all = {}
      for _, text in ipairs(kept) do
        for i = 1, text.over and 1 or samples do
          if i > 1 then n_streams = n_streams + 1 end
          local start = {ids = text.ids, stream = i == 1 and text.stream or n_streams}
          table.insert(all, text.over and text or think(prompt, start, length, seed, most))
        end
      end
      kept = table.move(rank(all), 1, breadth, 1, {})
    end
    for i, text in ipairs(kept) do
      while not text.over do text = think(prompt, text, most, seed, most) end
      kept[i] = text
    end
    return rank(kept)
  end

  local function compare(wanted, result)
    assert.equal(#wanted, #result.outputs)
    for i, output in ipairs(result.outputs) do
      assert.same(wanted[i].ids, output.ids)
      near(wanted[i].value, output.score)
    end
  end

  it("of one thought of one text is sample, under every chain", function()
    for _, chain in ipairs(CHAINS) do
      local arguments = "-n 24 --seed 7 " .. chain
      local plain = run("sample", arguments)
      for _, options in ipairs {"--depth 3 --thought-tokens 5", "--depth 0", "--depth 9"} do
        local result = run("tree_of_thought", ("--breadth 1 --samples 1 %s %s"):format(options,
          arguments))
        assert.same(plain.ids, result.ids)
        assert.equal(plain.text, result.text)
      end
    end
  end)

  it("keeps the best thoughts at each depth", function()
    local prompt = s.model:encode(PROMPT)
    local function value(ids) return mean_of(prompt, ids) end
    stops = {}
    compare(by_hand(prompt, value, 2, 3, 2, 5, 1, 16),
      run("tree_of_thought", "-n 16 --seed 1 --depth 2 --thought-tokens 5 --delimiter @"))
    stops = {[","] = true}
    compare(by_hand(prompt, value, 3, 2, 3, 6, 2, 20), run("tree_of_thought",
      "-n 20 --seed 2 --breadth 3 --samples 2 --depth 3 --thought-tokens 6 --delimiter ,"))
  end)

  it("judges by a file", function()
    local path = h.write(h.scratch "count.lua", [[
      return function(ids, text)
        local _, n = text:gsub("e", "e")
        return n + #ids / 1000
      end]])
    local prompt = s.model:encode(PROMPT)
    stops = {}
    local function value(ids)
      local _, n = s.model:decode(ids, {render_special = false}):gsub("e", "e")
      return n + #ids / 1000
    end
    compare(by_hand(prompt, value, 2, 3, 3, 4, 3, 16), run("tree_of_thought",
      "-n 16 --seed 3 --thought-tokens 4 --delimiter @ --value " .. path))
  end)

  it("judges by the answer to a question", function()
    local prompt = s.model:encode(PROMPT)
    local question = s.model:encode(" Is it good?", {add_special = false})
    local answer = s.model:encode(" yea", {add_special = false})
    stops = {}
    local function value(ids)
      local all = join(prompt, ids)
      if s.model:is_eog(all[#all]) then all[#all] = nil end
      return #answer * mean_of(join(all, question), answer)
    end
    for seed = 1, 3 do
      compare(by_hand(prompt, value, 2, 2, 2, 5, seed, 14), jobs.run(s.model, "tree_of_thought",
        ("-n 14 --samples 2 --depth 2 --thought-tokens 5 --delimiter @ --seed %d"):format(seed),
        PROMPT, {question = " Is it good?", answer = " yea"}))
    end
  end)

  it("leaves room for the question, and refuses one beside a file", function()
    with_model(h.builtin {ctx = 24, eog = {}}, function()
      local prompt = s.model:encode(PROMPT)
      local values = {question = " Is it good?"}
      local n = #s.model:encode(values.question, {add_special = false})
        + #s.model:encode(" yes", {add_special = false})
      local result = run("tree_of_thought", "-n 99", prompt, values)
      assert.equal(24 - #prompt - n, #result.ids)
      assert.equal("length", result.finish)
      values.question = (" and"):rep(20)
      local failed = jobs.run(s.model, "tree_of_thought", "-n 4", prompt, values)
      assert.equal("input", failed.error.kind)
      assert.truthy(failed.error.message:find("20 of question", 1, true))
      assert.truthy(failed.error.message:find("the context holds 24", 1, true))
      values = {question = " Why?", value = h.write(h.scratch "zero.lua", "return function() end")}
      failed = jobs.run(s.model, "tree_of_thought", "-n 4", prompt, values)
      assert.equal("--question and --value: give one of them", failed.error.message)
    end)
  end)

  it("changes with each option", function()
    local file = h.write(h.scratch "length.lua", "return function(ids, text) return -#text end")
    check_options("tree_of_thought", {max_tokens = 16, seed = 5, thought_tokens = 4}, PROMPT,
      {breadth = {1, 2, 3}, samples = {1, 2, 3}, depth = {0, 1, 3}, thought_tokens = {2, 4},
        delimiter = {"\n", "e"}})
    check_options("tree_of_thought", {max_tokens = 12, thought_tokens = 4, question = " Why?"},
      PROMPT, {question = {" Why?", " Who is he?"}, answer = {" yes", " no"}})
    check_options("tree_of_thought", {max_tokens = 12, thought_tokens = 4}, PROMPT,
      {value = {file, h.write(h.scratch "one.lua", "return function() return 1 end")}})
  end)
end)

describe("mcts", function()
  setup(s.open)
  teardown(s.close)

  local function likeliest(row, k)
    local ids, priors = select(2, row:topk(k)):tolist(), row:softmax():tolist()
    local out = {}
    for i, id in ipairs(ids) do out[i] = {id = id, prior = priors[id + 1], n = 0, total = 0} end
    return out
  end

  -- Each text from its beginning, without caches.
  local function search_by_hand(prompt, reward, opt)
    local made, root = {}, {n = 0, total = 0}
    local low, high = math.huge, -math.huge
    local function is_over(ids) return #ids >= opt.n or #ids > 0 and s.model:is_eog(ids[#ids]) end
    while not is_over(made) do
      for _ = 1, opt.simulations do
        local path, node, ids = {root}, root, join(made, {})
        while node.children do
          local best, most = nil, -math.huge
          for _, child in ipairs(node.children) do
            local q = 0
            if child.n > 0 and high > low then
              q = (child.total / child.n - low) / (high - low)
            end
            local u = q + opt.c_puct * child.prior * math.sqrt(node.n) / (1 + child.n)
            if u > most then best, most = child, u end
          end
          node = best
          table.insert(path, node)
          table.insert(ids, node.id)
        end
        if not is_over(ids) then
          node.children = likeliest(logits_of(join(prompt, ids)), opt.k)
          for _ = 1, opt.rollout do
            if is_over(ids) then break end
            table.insert(ids, logits_of(join(prompt, ids)):argmax():item())
          end
        end
        local value = reward(ids)
        low, high = math.min(low, value), math.max(high, value)
        for _, visited in ipairs(path) do
          visited.n, visited.total = visited.n + 1, visited.total + value
        end
      end
      local best = root.children[1]
      for _, child in ipairs(root.children) do
        if child.n > best.n then best = child end
      end
      table.insert(made, best.id)
      root = best
    end
    return made
  end

  local VOWELS = [[
    return function(ids, text)
      local _, n = text:gsub("[aeiou]", "")
      return n / (#text + 1)
    end]]

  local function vowels(text)
    local _, n = text:gsub("[aeiou]", "")
    return n / (#text + 1)
  end

  it("of one simulation, or one child, is greedy", function()
    for _, chain in ipairs {"", "--repetition-penalty 1.3", "--top-k 5"} do
      local plain = run("greedy", "-n 10 " .. chain)
      for _, options in ipairs {"--simulations 1", "--simulations 3 --k 1"} do
        local result = run("mcts", ("-n 10 --rollout 4 %s %s"):format(options, chain))
        assert.same(plain.ids, result.ids)
      end
    end
  end)

  it("searches as the plain algorithm does", function()
    local prompt = s.model:encode(PROMPT)
    local opt = {simulations = 7, k = 3, c_puct = 1.0, rollout = 3, n = 5}
    local wanted = search_by_hand(prompt, function(ids) return mean_of(prompt, ids) end, opt)
    local arguments = "-n 5 --simulations 7 --k 3 --rollout 3"
    local result = run("mcts", arguments)
    assert.same(wanted, result.ids)
    near(5 * mean_of(prompt, wanted), result.score)
    opt.c_puct = 0.3
    local path = h.write(h.scratch "vowels.lua", VOWELS)
    wanted = search_by_hand(prompt, function(ids)
      return vowels(s.model:decode(ids, {render_special = false}))
    end, opt)
    result = run("mcts", arguments .. " --c-puct 0.3 --reward " .. path)
    assert.same(wanted, result.ids)
  end)

  it("finds texts with a greater reward", function()
    local path = h.write(h.scratch "vowels.lua", VOWELS)
    local greedy, found = 0, 0
    for _, prompt in ipairs {PROMPT, "In the", "And God", "The king"} do
      local arguments = "-n 10 --rollout 4 --simulations 16 --reward " .. path
      greedy = greedy + vowels(run("greedy", "-n 10", prompt).text)
      found = found + vowels(run("mcts", arguments, prompt).text)
    end
    assert(found > greedy, ("%g, greedy %g"):format(found, greedy))
  end)

  it("is the same for the same seed, with rollouts that are drawn", function()
    local arguments = "-n 6 --rollout 4 --simulations 8 --sample --c-puct 0.5 --seed "
    assert.same(run("mcts", arguments .. 1).ids, run("mcts", arguments .. 1).ids)
    local texts, n = {}, 0
    for seed = 1, 6 do
      local text = run("mcts", arguments .. seed).text
      if not texts[text] then n = n + 1 end
      texts[text] = true
    end
    assert(n > 1)
  end)

  it("ends with the end token and gives its pages back", function()
    local plain = run("greedy", "-n 10")
    local before = llm.stats().pages_used
    with_model(h.builtin {threads = 2, eog = {plain.ids[3]}}, function()
      local result = run("mcts", "-n 10 --simulations 1")
      assert.same(table.move(plain.ids, 1, 3, 1, {}), result.ids)
      assert.equal("eos", result.finish)
      result = run("mcts", "-n 6 --simulations 9 --rollout 5")
      assert(#result.ids == 6 or result.finish == "eos")
    end)
    assert.equal(before, llm.stats().pages_used)
  end)

  it("names the file whose reward is none", function()
    local function message_of(source)
      local path = h.write(h.scratch "bad.lua", source)
      local result = jobs.run(s.model, "mcts", "-n 4 --reward " .. path)
      return result.error.kind .. " " .. result.error.message:gsub(path, "bad.lua")
    end
    assert.equal("script bad.lua: the value of a text must be a finite number, got a nil",
      message_of "return function() end")
    assert.equal("script bad.lua: the value of a text must be a finite number, got inf",
      message_of "return function() return 1 / 0 end")
    assert.equal("input bad.lua returns a number, not a function(ids, text)", message_of "return 1")
    assert.truthy(message_of("return function() error 'no' end"):find("no", 1, true))
    assert.truthy(message_of("return function( end"):find("bad.lua:1:", 1, true))
    assert.truthy(message_of("error 'broken'"):find("bad.lua:1: broken", 1, true))
    assert.truthy(message_of("x = 1"):find("global 'x'", 1, true))
  end)

  it("changes with each option", function()
    local path = h.write(h.scratch "vowels.lua", VOWELS)
    local base = {max_tokens = 8, simulations = 12, rollout = 4, c_puct = 0.5}
    check_options("mcts", base, PROMPT, {simulations = {1, 12}, k = {1, 4}, c_puct = {0.0, 3.0},
      rollout = {1, 6}, sample = {false, true}})
    assert.not_same(run("mcts", "-n 8 --rollout 4", PROMPT, {reward = path}).ids,
      run("mcts", "-n 8 --rollout 4").ids)
  end)
end)

describe("a strategy that searches", function()
  setup(s.open)
  teardown(s.close)

  local RUNS = {token_healing = "--sample", ban_strings = "--ban the",
    mcts = "--simulations 4 --rollout 3 --sample", entropy_branch = "",
    tree_of_thought = "--thought-tokens 4"}

  it("makes the same texts whatever runs beside it", function()
    local list, alone = {}, {}
    for seed = 1, 2 do
      for name, arguments in pairs(RUNS) do
        arguments = ("-n 8 --seed %d %s"):format(seed, arguments)
        table.insert(list, jobs.make(s.model, name, arguments))
        table.insert(alone, run(name, arguments))
      end
    end
    for i, result in ipairs(jobs.run_all(list, 10)) do
      assert.is_nil(result.error)
      assert.same(alone[i].outputs, result.outputs)
    end
  end)

  it("makes one token, and fills the context", function()
    with_model(h.builtin {ctx = 12, eog = {}}, function()
      local prompt = s.model:encode(PROMPT)
      for name, arguments in pairs(RUNS) do
        assert.equal(1, #run(name, "-n 1 " .. arguments).ids, name)
        assert.equal(12 - #prompt + 1, #run(name, arguments, prompt).ids, name)
        assert.equal(3, #run(name, "-n 3 " .. arguments, {prompt[1]}).ids, name)
      end
    end)
  end)

  it("runs with every chain, and with one row", function()
    with_model(h.builtin {max_rows = 1}, function()
      RUNS.entropy_branch = "--branches 1"
      RUNS.tree_of_thought = "--breadth 1 --samples 1"
      for name, arguments in pairs(RUNS) do
        for _, chain in ipairs(CHAINS) do
          run(name, ("-n 6 %s %s"):format(arguments, chain))
        end
      end
    end)
  end)

  it("refuses more rows than a pass has, with both numbers", function()
    with_model(h.builtin {max_rows = 4}, function()
      for name, arguments in pairs {entropy_branch = "--branches 6",
        tree_of_thought = "--breadth 2 --samples 3"} do
        local result = jobs.run(s.model, name, "-n 4 " .. arguments)
        assert.equal("misuse", result.error.kind)
        assert.equal("6 rows asked, --max-rows is 4", result.error.message)
      end
    end)
  end)

  it("is at most 60 lines of code", function()
    for _, name in ipairs {"token_healing", "ban_strings", "mcts", "tree_of_thought",
      "entropy_branch", "best_of_n", "self_consistency", "mbr"} do
      local n = 0
      for line in io.lines(("scripts/%s.lua"):format(name)) do
        if not line:find "^%s*$" and not line:find "^%s*%-%-" then n = n + 1 end
      end
      assert(n <= 60, ("%s has %d lines"):format(name, n))
    end
  end)
end)
