-- Strategies that go back: token_healing, ban_strings; held against the plain algorithm, which
-- computes every step anew.
local scripts = require "llm.scripts"
local h = require "spec.helper"
local jobs = require "spec.jobs"
local s = require "spec.strategies"

local CHAINS, PROMPT = s.chains, s.prompt
local run, join, logits_of, mean_of = s.run, s.join, s.logits_of, s.mean_of
local near, contains, check_options, with_model = s.near, s.contains, s.check_options, s.with_model

describe("token_healing", function()
  setup(s.open)
  teardown(s.close)

  -- The ids by looking at each token of the vocabulary at each step.
  local function heal_by_hand(prompt, n_healed, n)
    local head, bytes, made = table.move(prompt, 1, #prompt - n_healed, 1, {}), "", {}
    for i = #head + 1, #prompt do bytes = bytes .. s.model:token(prompt[i]) end
    for _ = 1, n do
      local row, best, most = logits_of(join(head, made)):tolist(), nil, -math.huge
      for id = 0, s.model.vocab_size - 1 do
        local token = s.model:token(id)
        local length = math.min(#token, #bytes)
        local shown = s.model:decode({id}, {render_special = false}) ~= ""
        local fits = bytes == "" or shown and token:sub(1, length) == bytes:sub(1, length)
        if fits and row[id + 1] > most then best, most = id, row[id + 1] end
      end
      bytes = bytes:sub(#s.model:token(best) + 1)
      table.insert(made, best)
    end
    return made
  end

  it("takes back the last tokens and goes on with what begins with their bytes", function()
    for _, text in ipairs {"And the LORD sa", "In the begin", "And the king of Is"} do
      for _, n in ipairs {1, 2} do
        local prompt = s.model:encode(text)
        local result = run("token_healing", ("-n 6 --tokens %d"):format(n), text)
        local wanted = heal_by_hand(prompt, n, 6)
        assert.same(wanted, result.ids)
        local whole = join(table.move(prompt, 1, #prompt - n, 1, {}), wanted)
        assert.equal(s.model:decode(whole, {render_special = false}),
          s.model:decode(prompt, {render_special = false}) .. result.text)
      end
    end
  end)

  it("mends a word that the prompt splits", function()
    assert.equal("id", run("token_healing", "-n 1", "And the LORD sa").text)
    assert.equal("ning of", run("token_healing", "-n 3", "In the begin").text)
  end)

  it("of tokens that the model itself would have used is greedy", function()
    local text = PROMPT .. run("greedy", "-n 6").text
    local healed = run("token_healing", "-n 11", text)
    local plain = run("greedy", "-n 10", text)
    assert.equal(plain.text, healed.text)
    assert.same(plain.ids, table.move(healed.ids, 2, 11, 1, {}))
    assert.equal(plain.text, run("token_healing", "-n 13 --tokens 3", text).text)
  end)

  it("of no token is greedy, or sample, under every chain", function()
    for _, chain in ipairs(CHAINS) do
      local arguments = "-n 16 --seed 5 " .. chain
      local greedy = run("token_healing", "--tokens 0 " .. arguments)
      local drawn = run("token_healing", "--tokens 0 --sample " .. arguments)
      assert.same(run("greedy", arguments).ids, greedy.ids)
      assert.same(run("sample", arguments).ids, drawn.ids)
    end
  end)

  it("never contradicts the bytes taken back, whatever is drawn", function()
    local prompt = s.model:encode "And the king of Is"
    for seed = 1, 12 do
      for n = 1, 4 do
        local arguments = ("-n 24 --sample --temperature 2 --seed %d --tokens %d"):format(seed, n)
        local result = run("token_healing", arguments, prompt)
        local whole = join(table.move(prompt, 1, #prompt - n, 1, {}), result.ids)
        assert.equal("And the king of Is" .. result.text,
          s.model:decode(whole, {render_special = false}))
      end
    end
  end)

  it("takes back no special token, and never the first", function()
    local eog = s.model.eog[1]
    local prompt = join(s.model:encode "And the LORD sa", {eog})
    assert.same(run("greedy", "-n 6", prompt).ids, run("token_healing", "-n 6", prompt).ids)
    prompt = join({s.model.bos, eog}, {s.model:encode("And", {add_special = false})[1]})
    assert.same(heal_by_hand(prompt, 1, 6), run("token_healing", "-n 6 --tokens 9", prompt).ids)
    local one = {s.model:encode "And"[2]}
    assert.same(run("greedy", "-n 4", one).ids, run("token_healing", "-n 4 --tokens 2", one).ids)
  end)

  it("counts all new tokens, and scores them by the model", function()
    local prompt = s.model:encode "And the LORD sa"
    local result = run("token_healing", "-n 3", prompt)
    assert.equal(3, #result.ids)
    near(3 * mean_of(table.move(prompt, 1, #prompt - 1, 1, {}), result.ids), result.score)
  end)

  it("changes with each option", function()
    check_options("token_healing", {max_tokens = 8, seed = 3}, "And the king of Is",
      {tokens = {0, 1, 2}, sample = {false, true}})
  end)

  it("mends what a SentencePiece model splits, in bytes too", function()
    for _, name in ipairs {"gemma3-f32", "llama-f32", "gpt2-f32"} do
      with_model(h.tiny(name), function()
        for _, text in ipairs {"Hello wor", "wor", " x", "Grü\u{DF}", "a\u{1F600}"} do
          local prompt = s.model:encode(text)
          local most = #prompt - 1
          for n = 0, math.min(3, most) do
            local arguments = ("-n 8 --sample --ignore-eog --seed %d --tokens %d"):format(n, n)
            local result = run("token_healing", arguments, prompt)
            local whole = join(table.move(prompt, 1, #prompt - n, 1, {}), result.ids)
            local plain = {render_special = false}
            assert.equal(s.model:decode(prompt, plain) .. result.text, s.model:decode(whole, plain))
          end
        end
      end)
    end
  end)
end)

describe("ban_strings", function()
  setup(s.open)
  teardown(s.close)

  -- Draws anew from the start after each match, with what is masked kept by what stands before.
  local function ban_by_hand(prompt, bans, n, seed)
    local masked = {}
    while true do
      local made, text, ends, clash = {}, "", {}, nil
      while #made < n and not clash do
        local key = table.concat(made, " ")
        local logits = logits_of(join(prompt, made))
        if masked[key] then logits = logits:mask(masked[key]) end
        local id = logits:sample({llm.rng(seed):at(#made + 1)}):item()
        table.insert(made, id)
        if s.model:is_eog(id) then break end
        text = text .. s.model:token(id)
        ends[#made] = #text
        for _, ban in ipairs(bans) do
          local at = text:find(ban, 1, true)
          if at then clash = math.min(clash or at, at) end
        end
      end
      if not clash then return made, text end
      local i = 1
      while ends[i] < clash do i = i + 1 end
      local key = table.concat(made, " ", 1, i - 1)
      masked[key] = join(masked[key] or {}, {made[i]})
    end
  end

  it("without a banned text in it is sample, under every chain", function()
    for _, chain in ipairs(CHAINS) do
      local arguments = "-n 24 --seed 2 " .. chain
      local plain = run("sample", arguments)
      assert.same(plain.ids, run("ban_strings", arguments).ids)
      local result = run("ban_strings", arguments .. " --ban thexyz --ban e%20q --ban \u{1F600}")
      assert.same(plain.ids, result.ids)
      assert.equal(plain.text, result.text)
    end
  end)

  it("never writes a banned text, across tokens and at the end", function()
    local bans = {"the", " a", "e t", "LORD", ", and", "s", "nd the", "o"}
    for seed = 1, 10 do
      local result = run("ban_strings", ("-n 24 --seed %d"):format(seed), PROMPT, {ban = bans})
      for _, ban in ipairs(bans) do assert(not contains(result.text, ban), result.text) end
      assert(#result.ids == 24 or result.finish == "eos")
    end
    for n = 1, 12 do
      local result = run("ban_strings", ("-n %d --temperature 0"):format(n), PROMPT,
        {ban = {"land", "the p"}})
      assert.equal(n, #result.ids)
      assert.equal("length", result.finish)
      assert(not contains(result.text, "land") and not contains(result.text, "the p"))
    end
  end)

  it("bans what no single token holds", function()
    local plain = run("sample", "-n 20 --seed 4 --min-tokens 20")
    local n_across = 0
    for i = 3, 12 do
      local ban = s.model:token(plain.ids[i]):sub(-1) .. s.model:token(plain.ids[i + 1]):sub(1, 2)
      local result = run("ban_strings", "-n 20 --seed 4 --min-tokens 20", PROMPT,
        {ban = {ban}})
      assert(not contains(result.text, ban))
      if not contains(s.model:token(plain.ids[i]), ban) then n_across = n_across + 1 end
    end
    assert(n_across > 5)
  end)

  it("never writes a banned text with other tokenizers, in pieces of characters too", function()
    for _, name in ipairs {"gemma3-f32", "llama-f32", "gpt2-f32"} do
      with_model(h.tiny(name, {eog = {}}), function()
        local n_changed = 0
        for seed = 1, 8 do
          local plain = run("sample", ("-n 16 --seed %d"):format(seed), "Hello")
          local bans = {plain.text:sub(3, 4), plain.text:sub(9, 11), " t", "\u{E9}"}
          local result = run("ban_strings", ("-n 16 --seed %d"):format(seed), "Hello", {ban = bans})
          for _, ban in ipairs(bans) do assert(not contains(result.text, ban)) end
          assert.equal(16, #result.ids)
          n_changed = n_changed + (result.text ~= plain.text and 1 or 0)
        end
        assert.equal(8, n_changed)
      end)
    end
  end)

  it("goes back to where the match begins, and draws again with the same noise", function()
    local prompt = s.model:encode(PROMPT)
    for seed, bans in ipairs {{"the"}, {" the", "an"}, {"and ", "e s", "th"}, {"e", ","},
      {"nd the ", " of"}, {"unto him"}} do
      local ids, text = ban_by_hand(prompt, bans, 16, seed)
      local result = run("ban_strings", ("-n 16 --seed %d"):format(seed), PROMPT, {ban = bans})
      assert.same(ids, result.ids)
      assert.equal(text, result.text)
      near(#ids * mean_of(prompt, ids), result.score)
    end
  end)

  it("ignores case where asked", function()
    local prompt = "And God said unto"
    local bans = {ban = {"tHE", "lord"}}
    local plain = run("ban_strings", "-n 24 --temperature 0", prompt, bans)
    assert.same(run("greedy", "-n 24", prompt).ids, plain.ids)
    assert(contains(plain.text, "the"))
    local folded = run("ban_strings", "-n 24 --temperature 0 --ignore-case", prompt, bans)
    assert(not contains(folded.text:lower(), "the"))
    assert(not contains(folded.text:lower(), "lord"))
  end)

  it("emits a token as soon as no banned text can begin in it", function()
    local plain, prompt = run("greedy", "-n 10"), s.model:encode(PROMPT)
    local function passes_of(ban)
      local decode = scripts.load(assert(scripts.find "ban_strings"))().decode
      local sampler = setmetatable({filter = function(logits) return logits end},
        {__call = function(_, logits) return logits:argmax() end})
      local start, passes = llm.stats().passes, {}
      decode(s.model, prompt, {ban = {ban}, ignore_case = false, max_tokens = 4, sampler = sampler},
        function()
          passes[#passes + 1] = llm.stats().passes - start
          return #passes == 4
        end)
      return passes
    end
    assert.same({1, 2, 3, 4}, passes_of "\1")
    assert.same({1, 3, 3, 4}, passes_of(s.model:token(plain.ids[2]) .. "\1"))
    -- of a text never banned in full, nothing is lost at the end
    for i = 1, 10 do
      local token = s.model:token(plain.ids[i])
      local result = run("ban_strings", ("--temperature 0 -n %d"):format(i), PROMPT,
        {ban = {token .. "\1"}})
      assert.same(table.move(plain.ids, 1, i, 1, {}), result.ids)
    end
  end)

  it("ends with the end token, after what was held back", function()
    local plain = run("greedy", "-n 10")
    with_model(h.builtin {threads = 2, eog = {plain.ids[6]}}, function()
      local held = s.model:token(plain.ids[5]) .. "\1"
      local result = run("ban_strings", "--temperature 0 -n 10", PROMPT, {ban = {held}})
      assert.same(table.move(plain.ids, 1, 6, 1, {}), result.ids)
      assert.equal("eos", result.finish)
    end)
  end)

  local function only_file(name, body)
    return h.write(h.scratch(name), ([=[
      return function(opts, model)
        local function id(text) return model:encode(text, {add_special = false})[1] end
        return function(logits, seqs)
          local n = #seqs[1] - seqs[1].n_prompt
          local last = seqs[1].ids[#seqs[1]]
          %s
        end
      end]=]):format(body))
  end

  it("goes further back where every id is masked", function()
    local path = only_file("narrow.lua", [[
      if n == 0 then return logits:only({id "a", id "b"}):add_at({id "a"}, 99) end
      if n == 1 then return logits:only({last == id "a" and id "c" or id "d"}) end
      return logits]])
    local result = run("ban_strings", "-n 4 --sampler " .. path, PROMPT, {ban = {"c", "aZ"}})
    assert.equal("bd", result.text:sub(1, 2))
  end)

  it("raises where every id is masked and nothing is held back", function()
    local path = only_file("closed.lua", [[
      if n == 2 then return logits:only({id "a", id "b"}) end
      return logits]])
    local result = jobs.run(s.model, "ban_strings", "-n 6 --sampler " .. path, PROMPT,
      {ban = {"a", "b"}})
    assert.equal("no_finite", result.error.kind)
    assert.equal("ban_strings: all ids are masked at token 3", result.error.message)
    assert.equal(2, #result.ids)
  end)

  it("refuses an empty text", function()
    local result = jobs.run(s.model, "ban_strings", "-n 6", PROMPT, {ban = {"x", ""}})
    assert.equal("input", result.error.kind)
    assert.truthy(result.error.message:find("empty", 1, true))
  end)

  it("changes with each option", function()
    check_options("ban_strings", {max_tokens = 24, ban = {"LORD", "THE"}}, PROMPT,
      {ban = {{"xyz"}, {"the"}, {"the", "e"}}, ignore_case = {false, true}})
  end)
end)
