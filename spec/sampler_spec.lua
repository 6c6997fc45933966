-- What holds for every sampler, and what each does beyond the reference (spec/sampler_reference).
local llm = require "llm"
local samplers = require "spec.samplers"
local h = require "spec.helper"
local lists = require "spec.rows"

local sequence, near, kept, flat = lists.sequence, lists.near, lists.kept, lists.flat

local names = {}
for name in pairs(samplers) do names[#names + 1] = name end
table.sort(names)

-- ---- what holds for all ----

describe("every sampler", function()
  local model, V, rows
  setup(function()
    model = h.builtin()
    V = model.vocab_size
    rows = {}
    for r = 1, 4 do -- flat, and ever more peaked
      local rng, row = llm.rng(r), {}
      for i = 1, V do row[i] = (rng:uniform() - 0.5) * 4 ^ (r - 1) end
      rows[r] = row
    end
  end)
  teardown(function() model:close() end)

  local function sampler(name, params)
    return require("samplers." .. name)(params or samplers[name].base, model)
  end

  -- Sequences that differ, with repetitions; one without output.
  local function sequences()
    local out = {sequence({5, 6}, {})}
    for r = 2, 4 do
      out[r] = sequence({5, 6, 7, 5, 6}, {r, 5, 6, r, 5})
      out[r].stream = r
    end
    return out
  end

  it("gives each of several rows what it gives that row alone", function()
    for _, name in ipairs(names) do
      local stage = sampler(name)
      local together = sequences()
      for step = 1, 3 do
        local out = stage(llm.logits(rows), together):lists()
        for r, row in ipairs(rows) do
          local alone, one = sampler(name), sequences()[r]
          for past = 1, step - 1 do
            alone(llm.logits {row}, {one})
            one:push(past + r)
          end
          assert.equal(0, h.difference(out[r], flat(alone(llm.logits {row}, {one}))), name)
        end
        for r, seq in ipairs(together) do seq:push(step + r) end
      end
    end
  end)

  it("gives the same when it is asked twice, and to a fork, whatever became of the original",
    function()
      for _, name in ipairs(names) do
        local stage, seq, plain = sampler(name), sequences()[2], sequences()[2]
        for step = 1, 5 do
          local x = llm.logits {rows[step % 4 + 1]}
          local first = flat(stage(x, {seq}))
          local fork = seq:fork()
          assert.equal(0, h.difference(first, flat(stage(x, {seq}))), name)
          assert.equal(0, h.difference(first, flat(stage(x, {fork}))), name)
          assert.equal(0, h.difference(first, flat(stage(x, {plain}))), name)
          seq:push(9) -- another way, which the fork does not know
          stage(llm.logits {rows[1]}, {seq})
          seq = fork
          seq:push(step)
          plain:push(step)
        end
      end
    end)

  it("does not change the logits it is given", function()
    for _, name in ipairs(names) do
      local x = llm.logits(rows)
      local before = x:lists()
      sampler(name)(x, sequences())
      for r, row in ipairs(x:lists()) do assert.equal(0, h.difference(before[r], row), name) end
    end
  end)

  it("passes nan and rows without a finite entry on to the choice, which raises", function()
    local nan, empty = {}, {}
    for i = 1, V do nan[i], empty[i] = i == 700 and 0 / 0 or 1, -math.huge end
    for _, name in ipairs(names) do
      if name ~= "forced" then
        for kind, row in pairs {nan = nan, no_finite = empty} do
          local ok, err = pcall(function()
            return sampler(name)(llm.logits {row}, {sequences()[2]}):argmax():item()
          end)
          assert.is_false(ok, name)
          assert(err.kind == kind or name == "dynamic_temperature", name .. ": " .. tostring(err))
        end
      end
    end
  end)

  it("keeps a token for every value of its parameters", function()
    local one = {}
    for i = 1, V do one[i] = i == 9 and -50 or -math.huge end
    local cutting = {dynamic_temperature = {{min = 0, max = 0}, {min = 9, max = 0}},
      epsilon = {{epsilon = 1}}, eta = {{epsilon = 1}}, min_p = {{p = 1}},
      mirostat_v1 = {{tau = 1e-6, mu = -1e3}, {tau = 900}},
      mirostat_v2 = {{tau = 1e-6, mu = -1e3}, {tau = 900}}, tail_free = {{z = 0}, {z = 0.99}},
      temperature = {{temperature = 0}, {temperature = 1e-38}, {temperature = 1e30}},
      top_a = {{a = 1}, {a = 1e-30}}, top_k = {{k = 1}, {k = 1 << 40}},
      top_n_sigma = {{n = 1e-9}, {n = 1e9}}, top_p = {{p = 0}}, typical_p = {{p = 0}},
      xtc = {{threshold = 0}, {threshold = 1}}}
    for name, list in pairs(cutting) do
      for _, params in ipairs(list) do
        local out = sampler(name, params)(llm.logits(rows), sequences())
        for _, most in ipairs(out:max():tolist()) do
          assert(most > -math.huge and most < math.huge, ("%s: %s"):format(name, most))
        end
        out = flat(sampler(name, params)(llm.logits {one}, {sequences()[1]}))
        assert.same({8}, kept(out), name)
      end
    end
  end)

  it("is one short file that names its source", function()
    local long = {dry = true, mirostat_v1 = true, mirostat_v2 = true, no_repeat_ngram = true,
      sequence_bias = true}
    for _, name in ipairs(names) do
      local code, source = 0, h.read("samplers/" .. name .. ".lua")
      for line in source:match("\nreturn function.*"):gmatch "[^\n]+" do
        if not line:find "^%s*%-%-" then code = code + 1 end
      end
      assert(code - 2 <= (long[name] and 20 or 10), name .. " has " .. code)
      assert(source:find "%d%d%d%d" or source:find "API" or source:find "transformers", name)
    end
  end)
end)

-- ---- penalties ----

describe("penalties", function()
  local logits = {{1, -1, 2, -2, 3}, {1, -1, 2, -2, 3}, {1, -1, 2, -2, 3}}

  it("treat each row by its own sequence, however long", function()
    local seqs = {sequence({0}, {0, 0}), sequence({1, 2, 3}, {4}), sequence({}, {})}
    local out = require "samplers.repetition" {penalty = 2}(llm.logits(logits), seqs):lists()
    near({0.5, -1, 2, -2, 3}, out[1])
    near({1, -2, 1, -4, 1.5}, out[2])
    near({1, -1, 2, -2, 3}, out[3])
    local stage = require "samplers.presence_frequency" {presence = 0.5, frequency = 0.25}
    out = stage(llm.logits(logits), seqs):lists()
    near({0, -1, 2, -2, 3}, out[1])
    near({1, -1, 2, -2, 2.25}, out[2])
    near({1, -1, 2, -2, 3}, out[3])
  end)
end)

describe("samplers/min_new_tokens.lua", function()
  it("masks the end tokens of the rows that are too short", function()
    local stage = require "samplers.min_new_tokens"({n = 2}, {eog = {1, 3}})
    local x = llm.logits {{1, 2, 3, 4}, {1, 2, 3, 4}}
    local out = stage(x, {sequence({0, 0, 0}, {5}), sequence({0}, {5, 6})}):lists()
    assert.same({1, -math.huge, 3, -math.huge}, out[1])
    assert.same({1, 2, 3, 4}, out[2])
  end)

  it("does nothing where no token ends", function()
    local stage = require "samplers.min_new_tokens"({n = 2}, {eog = {}})
    assert.same({1, 2}, stage(llm.logits {{1, 2}}, {sequence({0}, {})}):tolist())
  end)
end)

-- ---- cuts ----

local function cut(name, params, probs)
  local row = {}
  for i, p in ipairs(probs) do row[i] = math.log(p) end
  return kept(flat(require("samplers." .. name)(params)(llm.logits {row}, {llm.seq {0}})))
end

describe("samplers/top_a.lua", function()
  it("keeps what has at least a times the square of the largest probability", function()
    assert.same({0, 1, 2}, cut("top_a", {a = 0.4}, {0.5, 0.28, 0.12, 0.08, 0.02}))
    assert.same({0}, cut("top_a", {a = 0.4}, {0.9, 0.08, 0.02}))
    assert.same({0, 1, 2}, cut("top_a", {a = 0}, {0.9, 0.08, 0.02}))
  end)
end)

describe("samplers/tail_free.lua", function()
  it("cuts where the sorted curve has lost its curvature", function()
    -- slopes .3 .15 .05 .04 .0: bends .15 .1 .01 .04 of .30 in all; shares .5 .833 .867 1
    local probs = {0.04, 0.48, 0.18, 0.05, 0.03, 0.03}
    local total = 0.81
    for i, p in ipairs(probs) do probs[i] = p / total end
    local sorted = {1, 2, 3, 0, 4, 5}
    local p, bends, sum = {}, {}, 0
    for i, id in ipairs(sorted) do p[i] = probs[id + 1] end
    for i = 1, 4 do
      bends[i] = math.abs((p[i] - p[i + 1]) - (p[i + 1] - p[i + 2]))
      sum = sum + bends[i]
    end
    for _, z in ipairs {0.1, 0.55, 0.7, 0.9, 0.95} do
      local n, share = 1, 0
      for i = 1, 4 do
        share = share + bends[i] / sum
        if share <= z then n = n + 1 end
      end
      local wanted = table.move(sorted, 1, n, 1, {})
      table.sort(wanted)
      assert.same(wanted, cut("tail_free", {z = z}, probs))
    end
    assert.same({0, 1, 2, 3, 4, 5}, cut("tail_free", {z = 1}, probs))
  end)
end)

describe("samplers/dynamic_temperature.lua", function()
  it("is min where one token is left and max where all are alike", function()
    local stage = require "samplers.dynamic_temperature" {min = 0.5, max = 2}
    near({-math.huge, 6}, flat(stage(llm.logits {{-math.huge, 3}}, {})))
    near({1.5, 1.5, 1.5}, flat(stage(llm.logits {{3, 3, 3}}, {})))
    local x = llm.logits {{1, 2, -math.huge}}
    local share = x:entropy():item() / math.log(2)
    near({1 / (0.5 + 1.5 * share), 2 / (0.5 + 1.5 * share), -math.huge}, flat(stage(x, {})))
  end)
end)

describe("samplers/xtc.lua", function()
  local logits = llm.logits {{math.log(0.5), math.log(0.3), math.log(0.2)}}
  local stage = require "samplers.xtc" {probability = 0.3, threshold = 0.1}

  local function is_cut(seq, seed)
    return #kept(flat(stage(logits, {seq}, seed))) == 1
  end

  it("cuts as often as its probability says", function()
    local n, seq = 0, llm.seq {0}
    for _ = 1, 2000 do
      n = n + (is_cut(seq, 3) and 1 or 0)
      seq:push(1)
    end
    assert(math.abs(n - 600) < 80, n)
  end)

  it("has a coin of its own for each seed, stream and place, and no other", function()
    local function pattern(seed, stream, prompt)
      local out, seq = {}, llm.seq(prompt)
      seq.stream = stream
      for i = 1, 40 do
        out[i] = is_cut(seq, seed) and "1" or "0"
        seq:push(i % 3)
      end
      return table.concat(out)
    end
    local plain = pattern(1, 1, {0})
    assert.equal(plain, pattern(1, 1, {2, 2, 2, 2}))
    assert.equal(pattern(0, 1, {0}), pattern(nil, 1, {0}))
    assert.not_equal(plain, pattern(2, 1, {0}))
    assert.not_equal(plain, pattern(1, 2, {0}))
  end)
end)

-- ---- sequences ----

describe("samplers/dry.lua", function()
  it("ends repetitions at a breaker, also one that several tokens spell", function()
    local model <close> = h.builtin()
    local zeros = {}
    for i = 1, model.vocab_size do zeros[i] = 0 end
    local text = "one: two. one: two. one:"
    local function count(breakers)
      local stage = require "samplers.dry"({multiplier = 1, breakers = breakers}, model)
      local out = flat(stage(llm.logits {zeros}, {llm.seq(model:encode(text))}))
      local n = 0
      for _, x in ipairs(out) do n = n + (x < 0 and 1 or 0) end
      return n
    end
    assert(count {} > 0)
    assert.equal(0, count {":"})
    assert.equal(0, count {"one:"})
    assert(count {"three"} > 0)
  end)
end)

describe("samplers/mirostat_v2.lua", function()
  it("starts at 2 tau and moves by the surprise of what was pushed, once a step", function()
    local stage = require "samplers.mirostat_v2" {tau = 2, eta = 0.5}
    local row = {math.log(0.5), math.log(0.25), math.log(0.25)}
    local seq = llm.seq {0}
    stage(llm.logits {row}, {seq})
    assert.equal(4, seq.mirostat_v2.value)
    seq:push(1) -- 2 bits: as wanted
    for _ = 1, 3 do
      stage(llm.logits {row}, {seq})
      near({4}, {seq.mirostat_v2.value})
    end
    seq:push(0) -- 1 bit
    stage(llm.logits {row}, {seq})
    near({4.5}, {seq.mirostat_v2.value})
  end)

  it("learns nothing from an id that it had cut", function()
    local stage = require "samplers.mirostat_v2" {tau = 0.5, eta = 0.5}
    local row = {math.log(0.9), math.log(0.1)}
    local seq = llm.seq {0}
    stage(llm.logits {row}, {seq})
    seq:push(1)
    stage(llm.logits {row}, {seq})
    assert.equal(1, seq.mirostat_v2.value)
  end)
end)

describe("biases", function()
  local model
  setup(function() model = h.builtin() end)
  teardown(function() model:close() end)

  local function changes(name, params, seq)
    local zeros, out = {}, {}
    for i = 1, model.vocab_size do zeros[i] = 0 end
    local stage = require("samplers." .. name)(params, model)
    for i, x in ipairs(flat(stage(llm.logits {zeros}, {seq}))) do
      if x ~= 0 then out[i - 1] = x end
    end
    return out
  end

  it("are added up, single ids always, sequences behind their beginning", function()
    local bias = {{5, 1}, {{5}, 2}, {{8, 9}, -1}, {{7, 8, 9}, -4}, {{8, 8, 9}, -8}, {{6}, "-inf"}}
    for _, name in ipairs {"sequence_bias", "logit_bias"} do
      assert.same({[5] = 3, [6] = -math.huge}, changes(name, {bias = bias}, llm.seq {7}))
      assert.same({[5] = 3, [6] = -math.huge, [9] = -5},
        changes(name, {bias = bias}, sequence({7}, {8})))
      assert.same({}, changes(name, {bias = {}}, llm.seq {7}))
    end
  end)

  it("may name texts", function()
    local ids = model:encode("LORD", {add_special = false})
    local last = table.remove(ids)
    local got = changes("logit_bias", {bias = {{"LORD", 3}}}, llm.seq(ids))
    assert.equal(3, got[last])
  end)

  it("ban words, with a space before them or without", function()
    local function ways(word)
      local ids = model:encode(word, {add_special = false})
      return table.remove(ids), ids
    end
    for _, word in ipairs {"LORD", " LORD"} do
      local last, before = ways(word)
      assert.equal(-math.huge, changes("bad_words", {words = "LORD"}, llm.seq(before))[last])
    end
    local last, before = ways " LORD"
    assert.is_nil(changes("bad_words", {words = {"LORD"}, leading_space = false},
      llm.seq(before))[last])
    assert.same({[4] = -math.huge}, changes("bad_words", {ids = {{4}, {5, 6}}}, llm.seq {7}))
  end)

  it("are refused where they are none", function()
    for _, bias in ipairs {3, {{5}}, {{5, "x"}}, {{{}, 1}}, {{5, math.huge}}, {{-1, 2}}} do
      local ok, err = pcall(changes, "sequence_bias", {bias = bias}, llm.seq {7})
      assert.is_false(ok)
      assert(tostring(err):find("bias must be a list of [ids, x]", 1, true), tostring(err))
    end
    assert.has_error(function() changes("sequence_bias", {bias = {{1 << 20, 1}}}, llm.seq {7}) end)
  end)
end)

describe("samplers/forced.lua", function()
  it("leaves the wanted id alone at its place, whatever was cut before", function()
    local stage = require "samplers.forced" {ids = {2, 1}, at = 2}
    local x = llm.logits {{1, 2, 3}, {1, 2, -math.huge}, {-math.huge, -math.huge, 0}, {1, 2, 3}}
    local seqs = {llm.seq {0}, sequence({0}, {1}), sequence({0, 0}, {1, 2}),
      sequence({0}, {1, 2, 1})}
    local out = stage(x, seqs):lists()
    assert.same({0, 1, 2}, kept(out[1]))
    assert.same({2}, kept(out[2]))
    assert.same({1}, kept(out[3]))
    assert.same({0, 1, 2}, kept(out[4]))
  end)

  it("writes a text as the model spells it", function()
    local out = h.run("greedy -n 12 --json --quiet -p 'And the' --sampler "
      .. h.quote 'forced(text=" LORD said unto Moses", at=2)')
    local text = assert(out:match '"text":%s*"([^"]*)"', out)
    assert(text:find(" LORD said unto Moses", 1, true), text)
  end)

  it("needs ids or a text, not both", function()
    assert.has_error(function() require "samplers.forced" {} end)
    local model <close> = h.builtin()
    local params = {ids = {5}, text = "a"}
    local _, message = require "llm.chain".build({{name = "forced", params = params}}, model)
    assert.equal("sampler forced: unknown parameter 'ids'; known: text, at", message)
  end)
end)
