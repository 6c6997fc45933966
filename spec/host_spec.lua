-- One job, without the command line: what a strategy may do, and what comes of it.
local chain = require "llm.chain"
local json = require "llm.json"
local llm = require "llm"
local options = require "llm.options"
local run = require "llm.run"
local h = require "spec.helper"

local model

-- The result of a job of this source: a whole script, or the body of decode.
local function job(source, values, more)
  if not source:find "return [{(%d]" then
    source = ("return {decode = function(model, prompt, opt, emit) %s end}"):format(source)
  end
  local specs = assert(options.collect(nil))
  local opt = assert(options.parse({}, specs))
  for name, value in pairs(values or {}) do opt[name] = value end
  local request = {model = model, script = {source = source, chunk_name = "@test.lua"},
    prompt = {5, 6, 7}, opt = options.seal(opt, specs), stages = assert(chain.build({}, model))}
  for name, value in pairs(more or {}) do request[name] = value end
  return run.job(request)
end

local function fails(kind, message, source, values, more)
  local result = job(source, values, more)
  assert.is_table(result.error, "no error")
  assert.equal(kind, result.error.kind, result.error.message)
  assert(result.error.message:find(message, 1, true), result.error.message)
  return result
end

local GREEDY = [[
  local kv = model:cache()
  local logits = model:forward(kv, prompt)
  while true do
    local id = logits:argmax()
    if emit(id, opt.logprobs and {logits = logits} or nil) then return end
    logits = model:forward(kv, id)
  end
]]

describe("a job", function()
  setup(function() model = h.builtin() end)
  teardown(function() model:close() end)

  it("has the keys of the schema, in order", function()
    local line = json.encode(job(GREEDY, {max_tokens = 3}, {index = 4, id = "x"}))
    local at = 0
    for _, key in ipairs {"index", "id", "seed", "text", "ids", "score", "finish", "prompt_ids",
      "outputs", "counts", "timings", "load_s", "ttft_s", "prefill_tps", "decode_tps",
      "prefix_tokens", "recomputed_tokens", "passes"} do
      local found = line:find(('"%s":'):format(key), key == "outputs" and 1 or at, true)
      assert(found and (found > at or key == "outputs"), key .. " in " .. line)
      if key ~= "outputs" and key ~= "counts" then at = math.max(at, found) end
      if key == "counts" then at = found end
    end
    local value = assert(json.decode(line))
    assert.equal(4, value.index)
    assert.equal("x", value.id)
    assert.equal(3, #value.ids)
    assert.same({prompt = 3, output = 3}, value.counts)
    assert.equal(json.null, value.score)
    assert.same({5, 6, 7}, value.prompt_ids)
  end)

  it("ends by length, end token, stop string or rule", function()
    assert.equal("length", job(GREEDY, {max_tokens = 2}).finish)
    local eog = model.eog[1]
    local result = job(("emit(300) emit(%d) emit(301)"):format(eog))
    assert.equal("eos", result.finish)
    assert.same({300, eog}, result.ids)
    assert.equal(model:token(300), result.text)
    result = job(GREEDY, {max_tokens = 9}, {rule = function(ids) return #ids == 3 end})
    assert.equal("stop", result.finish)
    assert.equal(3, #result.ids)
    result = job("emit(300) emit(301)")
    assert.equal("stop", result.finish)
    assert.same({300, 301}, result.ids)
  end)

  it("goes on telling the reason once the text is over", function()
    local result = job([[
      local reasons = {}
      for i = 1, 5 do reasons[i] = emit(300 + i) or "on" end
      assert(table.concat(reasons, " ") == "on length length length length")
    ]], {max_tokens = 2})
    assert.is_nil(result.error)
    assert.same({301, 302}, result.ids)
  end)

  it("drops an error that comes after the end of the text", function()
    local result = job("emit(300) error 'late'", {max_tokens = 1})
    assert.is_nil(result.error)
    assert.equal("length", result.finish)
  end)

  it("with no token to make runs nothing", function()
    local result = job("error 'never'", {max_tokens = 0})
    assert.is_nil(result.error)
    assert.same({}, result.ids)
    assert.equal("length", result.finish)
    assert(json.encode(result):find('"ids":[]', 1, true))
  end)

  it("has score and logprobs from the logits given", function()
    local result = job(GREEDY, {max_tokens = 4, logprobs = 2})
    local kv <close> = model:cache()
    model:forward(kv, {5, 6, 7})
    local column = model:score(kv, result.ids):tolist()
    local sum = 0
    for i, entry in ipairs(result.logprobs) do
      assert.equal(result.ids[i], entry.id)
      assert(math.abs(entry.logprob - column[i]) < 1e-4)
      assert(entry.logprob <= 0)
      assert.equal(2, #entry.top)
      assert.equal(entry.id, entry.top[1].id)
      sum = sum + column[i]
    end
    assert(math.abs(result.score - sum) < 1e-3)
  end)

  it("has the same logprobs without them, only where they are asked for", function()
    local plain = GREEDY:gsub("opt.logprobs and {logits = logits} or nil", "nil")
    local with, without = job(GREEDY, {max_tokens = 40, logprobs = 1}),
      job(plain, {max_tokens = 40, logprobs = 1})
    assert.equal(#with.logprobs, #without.logprobs)
    for i, entry in ipairs(with.logprobs) do
      assert(math.abs(entry.logprob - without.logprobs[i].logprob) < 1e-4)
      assert.equal(entry.top[1].id, without.logprobs[i].top[1].id)
    end
    assert.equal(json.null, job(plain, {max_tokens = 4}).score)
    assert.is_nil(job(plain, {max_tokens = 4}).logprobs)
  end)

  it("may end before its first token: the text is empty", function()
    local result = job("local x = 1")
    assert.is_nil(result.error)
    assert.same({"", "stop", 0}, {result.text, result.finish, result.counts.output})
  end)

  it("that goes on emitting for ever is ended, and its text is kept", function()
    local result = job("while true do emit(300) end", {max_tokens = 2})
    assert.is_nil(result.error)
    assert.same({300, 300}, result.ids)
    package.loaded["spec.kept"] = {}
    job([[local kept = require "spec.kept"
      for _ = 1, 1001 do emit(300) end
      kept.ok, kept.message = pcall(emit, 300)]], {max_tokens = 1})
    local kept = package.loaded["spec.kept"]
    assert.is_false(kept.ok)
    assert(tostring(kept.message):find("the text is over (length)", 1, true), kept.message)
  end)

  it("that ends early gives the list of opt.partial", function()
    local source = [[return {decode = function(model, prompt, opt)
      opt.partial = function() %s end
      error(llm.error("time", "late"))
    end}]]
    local result = fails("time", "late",
      source:format "return {{ids = {300, 301}, score = -2}}")
    assert.same({300, 301}, result.ids)
    assert.same({"time", -2}, {result.finish, result.score})
    result = fails("time", "late", source:format "error 'oops'")
    assert.same({}, result.ids)
  end)

  it("that emits all at the end counts its passes as decoding", function()
    local source = [[
      local kv, ids = model:cache(), {}
      local logits = model:forward(kv, prompt)
      for i = 1, opt.max_tokens do
        ids[i] = logits:argmax():item()
        logits = model:forward(kv, ids[i])
      end
      for _, id in ipairs(ids) do emit(id) end]]
    local result = job(source, {max_tokens = 64})
    local t = result.timings
    local decoding = (result.counts.output - 1) / t.decode_tps
    assert(decoding > t.ttft_s - 3 / t.prefill_tps - 1e-6, decoding)
  end)

  it("that raises what is no text is told in words", function()
    fails("script", "error raised with a table, not a text: {1}", "error({1})")
    fails("script", "error raised with a nil, not a text", "error()")
  end)

  it("takes a list, best first, and ends its texts", function()
    local eog = model.eog[1]
    local result = job(([[return {decode = function()
      return {{ids = {300, 301}, score = -1.5}, {ids = {300, %d}}, {ids = {}, finish = "length"}}
    end}]]):format(eog))
    assert.equal(3, #result.outputs)
    assert.same({300, 301}, result.ids)
    assert.equal(-1.5, result.score)
    assert.same({"length", "eos", "length"}, {result.outputs[1].finish, result.outputs[2].finish,
      result.outputs[3].finish})
    assert.equal(model:token(300), result.outputs[2].text)
    assert.equal("", result.outputs[3].text)
  end)

  it("streams what it has as whole text", function()
    local parts = {}
    local result = job(GREEDY, {max_tokens = 30, stop = {"LORD, and"}},
      {sink = function(bytes) parts[#parts + 1] = bytes end})
    assert.equal(result.text, table.concat(parts))
  end)

  it("takes ids as numbers and as tensors of one entry", function()
    assert.same({300, 301}, job("emit(300.0) emit(llm.tensor {301})").ids)
    fails("misuse", "emit: one id at a time", "emit(llm.tensor {1, 2})")
    fails("misuse", "emit: id must be a token id, got nil", "emit()")
    fails("misuse", "emit: id must be a token id, got string", "emit 'x'")
    fails("misuse", "emit: id -1 is not in the vocabulary of " .. model.vocab_size, "emit(-1)")
    fails("misuse", "is not in the vocabulary of", "emit(model.vocab_size)")
    fails("misuse", "emit: unknown key 'logit'; known: logits, skip", "emit(1, {logit = 1})")
    fails("misuse", "emit: logits is one row", "emit(1, {logits = llm.tensor {1, 2}})")
    fails("misuse", "emit: skip is a number of bytes", "emit(1, {skip = -1})")
  end)

  it("that returns the wrong thing is told so", function()
    fails("misuse", "decode returns a string", "return {decode = function() return 'x' end}")
    fails("misuse", "decode returns one entry",
      "return {decode = function() return {ids = {}} end}")
    fails("misuse", "decode returns an empty table", "return {decode = function() return {} end}")
    fails("misuse", "entry 1 has no ids", "return {decode = function() return {{}} end}")
    fails("misuse", "unknown key 'id' in entry 1",
      "return {decode = function() return {{ids = {}, id = 3}} end}")
    fails("misuse", "decode both emits ids and returns a list",
      "return {decode = function(m, p, o, emit) emit(3) return {{ids = {}}} end}")
    fails("misuse", "the script returns no table with a function decode", "return 3")
  end)

  it("that raises keeps what it emitted, with a traceback", function()
    local result = fails("script", "test.lua:1: boom", "emit(300) error 'boom'")
    assert.same({300}, result.ids)
    assert(result.error.traceback:find("test.lua:1", 1, true))
    assert.equal(json.null, result.finish)
    fails("misuse", "cache is closed",
      "local kv = model:cache() kv:close() model:forward(kv, prompt)")
  end)

  it("has a prompt and options of its own to change", function()
    local result = job("opt.max_tokens, prompt[1] = 50, 9 for _ = 1, 60 do "
      .. "if emit(300) then return end end", {max_tokens = 3})
    assert.equal(3, #result.ids)
    assert.same({5, 6, 7}, result.prompt_ids)
  end)

  it("that returns an unknown finish is told the known ones", function()
    fails("misuse", "known: eos, length, stop, time",
      "local list = {{ids = {300}, finish = 'done'}} return list")
  end)

  it("that raises what has no text is told so", function()
    local result = job("error(setmetatable({}, {__tostring = function() error 'boo' end}))")
    assert.equal("script", result.error.kind)
  end)

  it("leaves no cache open", function()
    package.loaded["spec.kept"] = {}
    local result = job([[
      local kept = require "spec.kept"
      kept.a = model:cache()
      model:forward(kept.a, prompt)
      kept.b = kept.a:fork()
      kept.c = llm.reorder({kept.a}, {1, 1})
      emit(300)
    ]])
    assert.is_nil(result.error)
    local kept = package.loaded["spec.kept"]
    for _, kv in ipairs {kept.a, kept.b, kept.c[1], kept.c[2]} do
      local ok, err = pcall(function() return #kv end)
      assert.is_false(ok)
      assert.equal("cache is closed", err.message)
    end
    local outside <close> = model:cache()
    assert.equal(0, #outside)
  end)

  it("that yields by itself is told so", function()
    fails("misuse", "the script yielded", "emit(300) coroutine.yield(1)")
  end)

  it("may run coroutines of its own", function()
    local result = job([[
      local kv = model:cache()
      local steps = coroutine.wrap(function()
        local logits = model:forward(kv, prompt)
        while true do
          local id = logits:argmax():item()
          coroutine.yield(id)
          logits = model:forward(kv, id)
        end
      end)
      while not emit(steps()) do end
    ]], {max_tokens = 6})
    assert.same(job(GREEDY, {max_tokens = 6}).ids, result.ids)
  end)

  it("cannot write globals, and sees none of another job", function()
    fails("script", "global 'n' written in a strategy", "n = 1 emit(1)")
    fails("script", "global 'n' written in a strategy", "_G.n = 1 emit(1)")
    fails("script", "global 'f' written in a strategy", "return (function() f = 1 end)()")
    local source = [[
      local seen = 0
      return {decode = function(model, prompt, opt, emit) seen = seen + 1 emit(300 + seen) end}
    ]]
    assert.same({301}, job(source).ids)
    assert.same({301}, job(source).ids)
  end)

  it("draws math.random from its seed", function()
    local source = "for i = 1, 4 do emit(math.random(0, 2000)) end"
    local a = job(source, {seed = 1})
    assert.same(a.ids, job(source, {seed = 1}).ids)
    assert.not_same(a.ids, job(source, {seed = 2}).ids)
    assert.is_nil(job("local x = math.random() assert(x > 0 and x < 1) emit(1)").error)
  end)

  it("leaves out the bytes that repeat the prompt", function()
    local token = model:token(300)
    local result = job("emit(300, {skip = 1})")
    assert.equal(token:sub(2), result.text)
  end)
end)

describe("JSON", function()
  it("keeps big integers, empty lists and infinities apart", function()
    assert.equal('{"ids":[],"score":null}', json.encode {ids = json.list {}, score = -math.huge})
    assert.equal('{"id":9007199254740993}', json.encode {id = 9007199254740993})
    assert.equal(9007199254740993, json.decode('{"id":9007199254740993}').id)
    assert.equal("a\u{FFFD}b", json.decode(json.encode {text = "a\xFFb"}).text)
  end)

  it("is refused where it is none", function()
    for _, text in ipairs {"", "{", "{} {}", "nope"} do assert.is_nil((json.decode(text))) end
    assert.same({a = {1}}, json.decode ' {"a": [1]} ')
  end)
end)

describe("llm", function()
  it("is global in a script and what require gives", function()
    model = h.builtin()
    assert.same({1}, job("assert(llm == require 'llm') emit(1)").ids)
    assert.equal("table", type(llm))
    model:close()
  end)
end)
