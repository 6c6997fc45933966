-- The strategies that keep several texts side by side, held against the same algorithms in plain
-- code: every row computed anew from the whole text, all choices in Lua.
local h = require "spec.helper"
local jobs = require "spec.jobs"
local run = require "llm.run"
local s = require "spec.strategies"

local PROMPT = s.prompt
local concat, result_of, refused = s.concat, s.result_of, s.refused

local function read_outputs(result)
  local list = {}
  for i, output in ipairs(result.outputs) do
    list[i] = {ids = {table.unpack(output.ids)}, score = output.score}
  end
  return list
end

local function outputs_of(...)
  return read_outputs(result_of(...))
end

local function assert_outputs(wanted, got)
  assert.equal(#wanted, #got)
  for i, entry in ipairs(wanted) do
    assert.same(entry.ids, got[i].ids)
    assert(math.abs(entry.score - got[i].score) < 1e-4)
  end
end

-- Log-probabilities after ids as a list, that of id v at v + 1.
local function logprobs_after(model, ids)
  local kv <close> = model:cache()
  return model:forward(kv, ids):log_softmax():tolist()
end

local function by_score(a, b) return a.score > b.score end

-- ---- diverse beam search ----

-- Groups of beams {sum, ids}; each step group after group, as transformers' generate did it.
local function diverse_by_hand(model, prompt, o)
  local width, groups, all = o.beam // o.groups, {}, {}
  for g = 1, o.groups do groups[g] = {live = {{sum = 0, ids = {}}}, done = {}} end
  for n = 1, o.n do
    local n_taken = {}
    for _, group in ipairs(groups) do
      local candidates, taken = {}, {}
      for _, beam in ipairs(group.over and {} or group.live) do
        for v, x in ipairs(logprobs_after(model, concat(prompt, beam.ids))) do
          candidates[#candidates + 1] = {id = v - 1, ids = concat(beam.ids, {v - 1}),
            sum = beam.sum + x - o.penalty * (n_taken[v - 1] or 0)}
        end
      end
      table.sort(candidates, function(a, b) return a.sum > b.sum end)
      if not group.over then group.live = {} end
      for i = 1, math.min(#candidates, (1 + #model.eog) * width) do
        local c = candidates[i]
        local ends = model:is_eog(c.id)
        if not ends and #group.live < width then
          group.live[#group.live + 1], taken[#taken + 1] = c, c.id
        end
        if (ends or n == o.n) and i <= width then
          group.done[#group.done + 1] = {ids = c.ids, score = c.sum / n ^ o.length_penalty}
        end
      end
      table.sort(group.done, by_score)
      for i = #group.done, width + 1, -1 do group.done[i] = nil end
      for _, id in ipairs(taken) do n_taken[id] = (n_taken[id] or 0) + 1 end
      if #group.done == width and not group.over then
        local worst = group.done[width].score
        local length = o.early == "never" and o.length_penalty > 0 and o.n or n
        group.over = o.early == "true" or n == o.n
          or group.live[1].sum / length ^ o.length_penalty <= worst
      end
    end
  end
  for _, group in ipairs(groups) do table.move(group.done, 1, #group.done, #all + 1, all) end
  table.sort(all, by_score)
  return all
end

for _, case in ipairs {
  {"the built-in model", function() return h.builtin() end},
  {"a tiny model on ref", function() return h.tiny "llama-f32" end},
} do
  describe("diverse beam search on " .. case[1], function()
    local model, prompt
    setup(function()
      model = case[2]()
      prompt = model:encode(PROMPT)
    end)
    teardown(function() model:close() end)

    it("with one group is beam search", function()
      for _, asked in ipairs {"--beam 3 -n 12", "--beam 4 -n 20 --early-stopping true",
        "--beam 2 -n 16 --length-penalty -0.5 --repetition-penalty 1.3",
        "--beam 5 -n 14 --length-penalty 2 --early-stopping never --min-tokens 4", "--beam 1 -n 9",
        "--beam 6 -n 1"} do
        local beam = outputs_of(model, "beam", asked)
        assert.same(beam, outputs_of(model, "diverse_beam", asked .. " --groups 1"))
      end
    end)

    it("makes each group pay for the tokens of those before it", function()
      for _, o in ipairs {
        {beam = 4, groups = 2, penalty = 0.5, n = 8, length_penalty = 1, early = "false"},
        {beam = 3, groups = 3, penalty = 2.5, n = 8, length_penalty = 0, early = "never"},
        {beam = 6, groups = 2, penalty = 1.25, n = 6, length_penalty = 2, early = "true"},
        {beam = 4, groups = 2, penalty = 0.5, n = 1, length_penalty = 1, early = "false"},
      } do
        local arguments = ("--beam %d --groups %d --diversity-penalty %s -n %d "
          .. "--length-penalty %s --early-stopping %s"):format(o.beam, o.groups, o.penalty, o.n,
          o.length_penalty, o.early)
        assert_outputs(diverse_by_hand(model, prompt, o),
          outputs_of(model, "diverse_beam", arguments))
      end
    end)

    it("lets the groups end one by one", function()
      local eog = {}
      for _, id in ipairs(h.greedy(model, prompt, 3)) do eog[#eog + 1] = id end
      local before = model
      local ending <close> = case[1]:find "ref" and h.tiny("llama-f32", {eog = eog})
        or h.builtin {eog = eog}
      model = ending
      for _, early in ipairs {"true", "false", "never"} do
        local o = {beam = 4, groups = 2, penalty = 1.5, n = 7, length_penalty = 1, early = early}
        local arguments = "--beam 4 --groups 2 --diversity-penalty 1.5 -n 7 --early-stopping "
        assert_outputs(diverse_by_hand(ending, prompt, o),
          outputs_of(ending, "diverse_beam", arguments .. early))
      end
      model = before
    end)
  end)
end

-- ---- stochastic beam search ----

describe("stochastic beam search", function()
  local model, prompt
  setup(function()
    model = h.tiny("llama-f32", {pages = 2000})
    prompt = model:encode(PROMPT)
  end)
  teardown(function() model:close() end)

  it("of one beam is sampling", function()
    for seed = 1, 20 do
      local asked = ("-n 12 --seed %d --temperature 0.8 --top-k 40"):format(seed)
      assert.same(result_of(model, "sample", asked).ids,
        result_of(model, "stochastic_beam", asked .. " --beam 1").ids)
    end
  end)

  it("draws texts that differ, likeliest first, with their log-probabilities", function()
    for seed = 1, 8 do
      local seen, last = {}, 0
      local outputs = outputs_of(model, "stochastic_beam", "--beam 12 -n 4 --seed " .. seed)
      assert.equal(12, #outputs)
      for _, output in ipairs(outputs) do
        local name, sum = table.concat(output.ids, " "), 0
        assert.is_nil(seen[name])
        seen[name] = true
        for i, id in ipairs(output.ids) do
          local before = concat(prompt, table.move(output.ids, 1, i - 1, 1, {}))
          sum = sum + logprobs_after(model, before)[id + 1]
        end
        assert(math.abs(sum - output.score) < 1e-3)
        assert(output.score <= last)
        last = output.score
      end
    end
  end)

  it("gives another set for another seed, the same for the same", function()
    local asked = "--beam 3 -n 6 --seed "
    assert.same(outputs_of(model, "stochastic_beam", asked .. 4),
      outputs_of(model, "stochastic_beam", asked .. 4))
    assert.not_same(outputs_of(model, "stochastic_beam", asked .. 4),
      outputs_of(model, "stochastic_beam", asked .. 5))
  end)

  -- The likely texts of up to two tokens, of three ids a step, with their probabilities.
  local function small_world(from, eog)
    local texts = {}
    local function walk(ids, p, depth)
      local top = {}
      for v, x in ipairs(logprobs_after(from, concat(prompt, ids))) do top[v] = {v - 1, x} end
      table.sort(top, function(a, b) return a[2] > b[2] end)
      local sum = math.exp(top[1][2]) + math.exp(top[2][2]) + math.exp(top[3][2])
      for i = 1, 3 do
        local text, q = concat(ids, {top[i][1]}), p * math.exp(top[i][2]) / sum
        if depth == 2 or eog[top[i][1]] then
          texts[table.concat(text, " ")] = q
        else
          walk(text, q, depth + 1)
        end
      end
    end
    walk({}, 1, 1)
    return texts
  end

  -- Pairs without replacement: chi-square of the sets drawn, against p·q/(1 − p) + q·p/(1 − q).
  local function chi_square(from, texts, n_draws)
    local counts, names, chi, n = {}, {}, 0, 0
    local job = jobs.make(from, "stochastic_beam", "--beam 2 -n 2 --top-k 3")
    for seed = 1, n_draws do
      job.opt.seed = seed
      local pair = read_outputs(run.job(job))
      local a, b = table.concat(pair[1].ids, " "), table.concat(pair[2].ids, " ")
      assert(texts[a] and texts[b] and a ~= b)
      assert(math.abs(math.log(texts[a]) - pair[1].score) < 1e-4)
      local name = a < b and a .. "|" .. b or b .. "|" .. a
      counts[name] = (counts[name] or 0) + 1
    end
    for name in pairs(texts) do names[#names + 1] = name end
    table.sort(names)
    for i, a in ipairs(names) do
      for k = i + 1, #names do
        local p, q = texts[a], texts[names[k]]
        local expected = n_draws * (p * q / (1 - p) + q * p / (1 - q))
        chi = chi + ((counts[a .. "|" .. names[k]] or 0) - expected) ^ 2 / expected
        n = n + 1
      end
    end
    return chi, n
  end

  it("draws without replacement: each pair as often as it should be", function()
    local chi, n = chi_square(model, small_world(model, {}), 1500)
    assert.equal(36, n)
    assert(chi < 66.6, chi) -- 35 degrees of freedom, one in a thousand
  end)

  it("does so where texts end at different lengths", function()
    local first = h.greedy(model, prompt, 1)[1]
    local ending <close> = h.tiny("llama-f32", {eog = {first}})
    local chi, n = chi_square(ending, small_world(ending, {[first] = true}), 1500)
    assert.equal(21, n)
    assert(chi < 45.3, chi) -- 20 degrees of freedom
  end)

  it("has fewer texts where there are no more", function()
    assert.equal(1, #outputs_of(model, "stochastic_beam", "--beam 5 -n 6 --temperature 0"))
    assert.equal(8, #outputs_of(model, "stochastic_beam", "--beam 50 -n 3 --top-k 2"))
    local wide = model.vocab_size + 7
    assert.equal(wide, #outputs_of(model, "stochastic_beam", "-n 2 --beam " .. wide))
    assert.equal(model.vocab_size, #outputs_of(model, "stochastic_beam", "-n 1 --beam " .. wide))
  end)
end)

-- ---- constrained beam search ----

describe("constrained beam search", function()
  local model, tiny, ending
  setup(function()
    model, tiny = h.builtin {threads = 2}, h.tiny("llama-f32", {pages = 2000})
    ending = h.tiny("llama-f32", {eog = {5, 12, 44, 71, 130, 258, 290}})
  end)
  teardown(function()
    model:close()
    tiny:close()
    ending:close()
  end)

  it("without words is beam search", function()
    for _, asked in ipairs {"--beam 3 -n 12", "--beam 4 -n 20 --early-stopping true",
      "--beam 2 -n 16 --length-penalty -0.5 --repetition-penalty 1.3", "--beam 1 -n 9",
      "--beam 5 -n 14 --length-penalty 2 --early-stopping never --min-tokens 4"} do
      for _, m in ipairs {model, tiny, ending} do
        assert.same(outputs_of(m, "beam", asked), outputs_of(m, "constrained_beam", asked))
      end
    end
  end)

  it("makes every text contain every word", function()
    for _, case in ipairs {{"fish", 8}, {"xylophone", 4}, {"fish,tabernacle,Moses", 8},
      {"xylophone,computer,fish,fisherman", 3}, {"king,king", 1}, {"the,%20the,them", 5},
      {"LORD%20God", 8}} do
      local words, beam = table.unpack(case)
      for _, more in ipairs {"-n 24", "-n 24 --top-k 2", "-n 20 --early-stopping true"} do
        local arguments = ("--words %s --beam %d %s"):format(words, beam, more)
        local result = result_of(model, "constrained_beam", arguments)
        assert(#result.outputs > 0)
        for _, output in ipairs(result.outputs) do
          for word in words:gsub("%%20", " "):gmatch "[^,]+" do
            assert.truthy(output.text:find(word, 1, true), word .. " in " .. output.text)
          end
        end
      end
    end
  end)

  it("finds the best texts of all where the beam holds them all", function()
    local prompt, ways = tiny:encode(PROMPT), {tiny:encode("he", {add_special = false}),
      tiny:encode(" he", {add_special = false})}
    local function has_word(ids)
      for _, way in ipairs(ways) do
        for from = 1, #ids - #way + 1 do
          local same = true
          for i, id in ipairs(way) do same = same and ids[from + i - 1] == id end
          if same then return true end
        end
      end
    end
    local wanted, first = {}, logprobs_after(tiny, prompt)
    for a = 0, tiny.vocab_size - 1 do
      local second = not tiny:is_eog(a) and logprobs_after(tiny, concat(prompt, {a})) or {}
      for v, x in ipairs(second) do
        local ids = {a, v - 1}
        if has_word(ids) then
          wanted[#wanted + 1] = {ids = ids, score = (first[a + 1] + x) / 2}
        end
      end
    end
    table.sort(wanted, by_score)
    local got = outputs_of(tiny, "constrained_beam", "--words he -n 2 --beam 320")
    assert.equal(320, #got)
    assert_outputs(table.move(wanted, 1, 320, 1, {}), got)
  end)

  it("meets the words in as few tokens as they take", function()
    local n = #model:encode("xylophone", {add_special = false})
    local result = result_of(model, "constrained_beam", "--words xylophone -n " .. n)
    assert.truthy(result.text:find "xylophone")
    refused(("the words take %d tokens, at most %d may be made"):format(n, n - 1), model,
      "constrained_beam", "--words xylophone -n " .. n - 1)
    refused("a word that must appear is empty", model, "constrained_beam", "-n 4", nil,
      {words = {""}})
  end)

  it("scores with sums of log-probabilities", function()
    local result = result_of(model, "constrained_beam",
      "--words fish,king --beam 4 -n 12 --length-penalty 0.7 --logprobs 0")
    s.check_scores(result, 0.7)
  end)
end)

describe("llm.words", function()
  local start = require "llm.words"
  -- A model of letters: the id of a letter is its byte, a space before goes with the letter.
  local model = {encode = function(_, text)
    local ids = {}
    for space, letter in text:gmatch "( ?)(.)" do
      ids[#ids + 1] = letter:byte() + (space ~= "" and 1000 or 0)
    end
    return ids
  end}

  local function left_after(words, text)
    local lefts = {words.left}
    for at = 1, #text do
      words = assert(words:after(text:byte(at), 99))
      lefts[#lefts + 1] = words.left
    end
    return lefts
  end

  it("counts down what is to come, and starts anew where a word breaks off", function()
    assert.same({3, 2, 1, 3, 2, 1, 0, 0}, left_after((start(model, {"abc"}, 9)), "abxabcx"))
    assert.same({3, 2, 1, 2, 1, 0}, left_after((start(model, {"abc"}, 9)), "ababc"))
    assert.same({3, 2, 1, 1, 0}, left_after((start(model, {"aab"}, 9)), "aaab"))
  end)

  it("follows words that begin alike, in any order", function()
    assert.same({7, 6, 5, 4, 3, 2, 1, 0}, left_after((start(model, {"abc", "abde"}, 9)), "abdeabc"))
    assert.same({4, 3, 2, 1, 0}, left_after((start(model, {"ab", "cd"}, 9)), "cdab"))
  end)

  it("takes a word with a space before it", function()
    local words, ids = start(model, {"ab"}, 9)
    table.sort(ids)
    assert.same({97, 98, 1097}, ids)
    assert.equal(0, words:after(1097, 9):after(98, 9).left)
  end)

  it("says where there is no room left", function()
    local words = start(model, {"abc"}, 3)
    assert.is_nil(words:after(120, 2))
    assert.equal(3, words:after(120, 3).left)
    assert.equal(2, words:after(97, 2).left)
  end)
end)

-- ---- all of them ----

describe("searches with several texts", function()
  local model
  setup(function() model = h.builtin() end)
  teardown(function() model:close() end)

  local names = {"diverse_beam", "stochastic_beam", "constrained_beam"}

  it("go on when every token ends, in one token and to the end of the context", function()
    local all, long = {}, {}
    for id = 0, model.vocab_size - 1 do all[#all + 1] = id end
    for i = 1, model.ctx - 1 do long[i] = 300 + i % 200 end
    local ending <close> = h.builtin {eog = all}
    for _, name in ipairs(names) do
      for _, output in ipairs(result_of(ending, name, "--beam 4 -n 9").outputs) do
        assert.equal(1, #output.ids)
        assert.equal("eos", output.finish)
      end
      local result = result_of(model, name, "--beam 4 -n 1")
      assert.equal(4, #result.outputs)
      for _, output in ipairs(result_of(model, name, "--beam 4 -n 9 --min-tokens 9", long).outputs)
      do
        assert.equal(2, #output.ids)
        assert.equal("length", output.finish)
      end
    end
  end)

  it("may be wider than the vocabulary", function()
    local tiny <close> = h.tiny("llama-f32", {pages = 20000})
    local wide = 2 * tiny.vocab_size
    for _, asked in ipairs {"diverse_beam --groups 2", "stochastic_beam", "constrained_beam"} do
      local name, more = asked:match "^(%S+) ?(.*)$"
      local result = result_of(tiny, name, ("%s -n 2 --beam %d"):format(more, wide), "a")
      assert.equal(wide, #result.outputs)
    end
  end)

  it("have at most 60 lines of code", function()
    for _, name in ipairs {"diverse_beam", "stochastic_beam", "constrained_beam", "cfg", "cad",
      "dola", "contrastive_search", "contrastive_decoding"} do
      local n = 0
      for line in io.lines("scripts/" .. name .. ".lua") do
        if not line:find "^%s*$" and not line:find "^%s*%-%-" then n = n + 1 end
      end
      assert(n <= 60, name .. " " .. n)
    end
  end)

  it("tell what all their pools hold, best first", function()
    local pool = require "llm.pool"
    local opt = {beam = 2, length_penalty = 1.0, early_stopping = false, max_tokens = 9,
      max_rows = 8}
    local a, b, seq = pool(opt, 1), pool(opt, 1), llm.seq {1, 2}
    assert.same({}, opt.partial())
    a:add(seq:fork(300), -3.0, 1)
    b:add(seq:fork(301), -2.0, 1)
    b:add(seq:fork(302), -2.5, 1)
    local both = {{ids = {301}, score = -2.0}, {ids = {300}, score = -3.0}}
    assert.same(both, opt.partial())
    assert.same(both, a:results(b))
    assert.same({{ids = {300}, score = -3.0}}, a:results())
  end)

  it("refuse beams that cannot be shared out", function()
    refused("5 beams cannot be shared out to 2 groups", model, "diverse_beam",
      "--beam 5 --groups 2")
  end)
end)

describe("searches and contrasts side by side", function()
  it("make what they make alone", function()
    local model <close> = h.builtin()
    local function make(seed)
      local list = {}
      for i, name in ipairs {"diverse_beam", "stochastic_beam", "constrained_beam", "cfg", "cad",
        "dola", "contrastive_search", "contrastive_decoding"} do
        local arguments = ("-n 12 --seed %d --repetition-penalty 1.2"):format(seed)
        if name == "constrained_beam" then arguments = arguments .. " --words fish,king" end
        list[i] = jobs.make(model, name, arguments, PROMPT,
          name == "contrastive_decoding" and {amateur = model} or nil)
      end
      return list
    end
    local together = jobs.run_all(make(3), 8)
    for i, job in ipairs(make(3)) do
      local alone = run.job(job)
      assert(not alone.error and not together[i].error)
      assert.same(read_outputs(alone), read_outputs(together[i]))
    end
  end)
end)

describe("every option of a strategy", function()
  local model, amateur
  setup(function()
    local eog = {5, 12, 44, 71, 130, 258, 290}
    model, amateur = h.tiny("llama-f32", {eog = eog}), h.tiny "llama-llama3"
  end)
  teardown(function()
    model:close()
    amateur:close()
  end)

  local sweeps = {
    diverse_beam = {"beam 4|2", "groups 2|4", "diversity-penalty 0.5|3", "length-penalty 1|-2",
      "early-stopping false|true|never"},
    stochastic_beam = {"beam 4|2"},
    constrained_beam = {"words he|to", "beam 8|2", "length-penalty 1|-2",
      "early-stopping false|true|never"},
    contrastive_search = {"k 4|8", "alpha 0.6|0.9"},
    contrastive_decoding = {"strength 0.5|8", "plausibility 0.01|0.9", "sample false|true"},
    cfg = {"guidance-scale 1.5|6", "negative-prompt a|the", "negative-prompt-ids 3|44",
      "sample false|true"},
    cad = {"context a|the", "alpha 0.5|9", "sample false|true"},
    dola = {"bucket low|high", "layers 0|1", "plausibility 0.01|0.9", "sample false|true"},
  }
  local with = {cad = "--context word", contrastive_decoding = "--strength 4"}

  for name, list in pairs(sweeps) do
    for _, sweep in ipairs(list) do
      local option, values = sweep:match "(%S+) (%S+)"
      it(("changes what %s makes: %s"):format(name, option), function()
        local seen, n = {}, 0
        for value in values:gmatch "[^|]+" do
          local arguments = ("%s --%s=%s -n 40"):format(with[name] or "", option, value)
          local parts = {}
          for i, output in ipairs(result_of(model, name, arguments, PROMPT,
            name == "contrastive_decoding" and {amateur = amateur} or nil).outputs) do
            parts[i] = ("%s %s"):format(table.concat(output.ids, " "), output.score)
          end
          seen[table.concat(parts, "|")], n = true, n + 1
        end
        local n_seen = 0
        for _ in pairs(seen) do n_seen = n_seen + 1 end
        assert(n_seen > 1, ("%d values, one output"):format(n))
      end)
    end
  end
end)
