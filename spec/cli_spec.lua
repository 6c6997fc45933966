-- The program as a user runs it: arguments, streams, exit status.
local json = require "llm.json"
local h = require "spec.helper"

local q = h.quote

-- Asserts the exit status and that every text is in what was printed on standard error.
local function fails(status, arguments, ...)
  local out, err, code = h.run(arguments)
  assert.equal(status, code, err)
  for _, text in ipairs {...} do assert(err:find(text, 1, true), err) end
  assert(not err:find("stack traceback", 1, true), err)
  return out, err
end

local function prints(expected, arguments, input)
  local out, err, code = h.run(arguments, input)
  assert.equal(0, code, err)
  assert.equal(expected, out)
end

local function text_of(arguments, input)
  local out, err, code = h.run(arguments .. " --quiet", input)
  assert.equal(0, code, err)
  assert.equal("", err)
  return out
end

local function json_of(arguments, input)
  return assert(json.decode(text_of(arguments .. " --json", input)))
end

local function script(name, source)
  return q(h.write(h.scratch(name), source))
end

describe("llmlua", function()
  it("tells its version, at once", function()
    local out, err, code = h.run "--version"
    assert.equal(0, code)
    assert.equal("", err)
    assert(out:find "^llmlua %d+%.%d+%.%d+\n$")
    prints(out, "greedy --version")
  end)

  it("alone lists the bundled scripts with what they do", function()
    local out, _, code = h.run ""
    assert.equal(0, code)
    for _, name in ipairs {"beam", "bench", "greedy", "sample", "score"} do
      assert(out:find("\n  " .. name .. " +%l"), out)
    end
    assert.equal(out, (h.run "--help"))
  end)

  it("helps with a script: what it does, its options, the common ones", function()
    local out, err, code = h.run "scripts/beam.lua --help"
    assert.equal(0, code, err)
    for _, text in ipairs {"beam search", "--length-penalty", "--early-stopping", "--max-tokens",
      "--sampler", "--threads", "Exit status"} do
      assert(out:find(text, 1, true), text)
    end
  end)

  it("finds a script by path, then among the bundled", function()
    local text = text_of "greedy -n 5 -p x"
    assert.equal(text, text_of "greedy.lua -n 5 -p x")
    assert.equal(text, text_of "scripts/greedy.lua -n 5 -p x")
    fails(2, "nosuch", "no script 'nosuch'; bundled: ")
    fails(2, "/tmp", "no script '/tmp'")
    fails(2, "--json greedy", "the script comes first")
  end)

  it("refuses unknown options with the list of the known, wrong values with their range", function()
    fails(2, "beam --beem 3", "unknown option '--beem'", "known options: --beam ", "--max-tokens")
    fails(2, "beam --beam 0", "--beam: '0' is not an integer of at least 1", "(--help lists")
    fails(2, "beam --beam x", "--beam: 'x' is not an integer")
    fails(2, "greedy --temperature nan", "--temperature: 'nan' is not a number of at least 0")
    fails(2, "greedy extra", "unexpected argument 'extra'")
    fails(2, "greedy --stop ''", "--stop: an empty text")
    fails(2, "greedy --sampler top_k=2 --top-p 0.5", "--sampler and --top-p: give one of them")
    fails(2, "greedy --device tpu", "'tpu' is not one of auto, cpu, ref, cuda, cuda:N")
    fails(2, "greedy --logprobs 2", "--logprobs needs --json")
    fails(2, "bench --top-k 3", "unknown option '--top-k'", "known options: --against --beams")
    fails(2, "score --max-tokens 3", "unknown option '--max-tokens'")
    fails(2, "greedy --sampler nosuch", "sampler nosuch: unknown sampler; known: ")
    fails(2, "greedy --prompt-ids 1,99999", "id 99999 at place 2 is not in the vocabulary of ")
    fails(2, "greedy -p a -f b", "--prompt, --file and --prompt-ids: give one of them")
  end)

  it("names the rows asked for and --max-rows", function()
    fails(1, "beam --beam 100000", "100000 rows asked, --max-rows is 1024")
    fails(1, "beam --beam 9 --max-rows 8", "9 rows asked, --max-rows is 8")
  end)
end)

describe("the prompt", function()
  it("comes from -p, -f, standard input or ids", function()
    local text = text_of("greedy -n 8 -p 'And God said'")
    local path = h.write(h.scratch "prompt.txt", "And God said\n")
    assert.equal(text, text_of("greedy -n 8 -f " .. q(path)))
    assert.equal(text, text_of("greedy -n 8 -f -", "And God said"))
    assert.equal(text, text_of("greedy -n 8", "And God said\n"))
    local ids = json_of "greedy -n 8 -p 'And God said'".prompt_ids
    assert.equal(text, text_of("greedy -n 8 --prompt-ids " .. table.concat(ids, ",")))
  end)

  it("is the built-in model's own where there is none", function()
    local out, err, code = h.run "greedy -n 4"
    assert.equal(0, code, err)
    assert.equal(out, (h.run("greedy -n 4", "")))
    fails(2, "greedy -m spec/data/models/llama-f32.gguf", "no prompt")
    assert(err:find('llmlua: prompt "In the beginning"\n', 1, true), err)
    assert((h.run "greedy --help"):find('continues "In the beginning"', 1, true))
    assert(not (h.run "score --help"):find("In the beginning", 1, true))
  end)

  it("may begin with a dash, be empty, or be no UTF-8", function()
    assert.equal(4, #json_of("greedy -n 4 --ignore-eog -p '- item'").ids)
    local empty = json_of("greedy -n 4 --ignore-eog -p ''")
    assert.equal(4, #empty.ids)
    assert.equal(1, #empty.prompt_ids)
    local result = json_of("greedy -n 4 -p $(printf '\\377\\376')")
    assert.equal(3, result.counts.prompt)
  end)

  it("longer than the context is refused with both numbers", function()
    local _, err = fails(1, "greedy --ctx 4 -p 'one two three four five six'", "prompt too long: ")
    assert(err:find("prompt too long: %d+ tokens, the context holds 4"), err)
    local ids = json_of("greedy --ctx 6 --prompt-ids 1,2,3,4 --ignore-eog").ids
    assert.equal(3, #ids)
    assert.equal(1, #json_of("greedy --ctx 4 --prompt-ids 1,2,3,4 --ignore-eog").ids)
  end)
end)

describe("the text", function()
  it("goes to standard output with one newline, all else to standard error", function()
    local out, err, code = h.run "greedy -n 6 -p 'And God said'"
    assert.equal(0, code)
    assert.equal(out, text_of "greedy -n 6 -p 'And God said'")
    assert.equal(json_of "greedy -n 6 -p 'And God said'".text .. "\n", out)
    for _, text in ipairs {"first token after", "tokens/s", "peak memory"} do
      assert(err:find(text, 1, true), err)
    end
    assert(not err:find("\27", 1, true))
  end)

  it("is empty, with a warning, where the strategy makes no token", function()
    local path = script("none.lua", "return {decode = function() end}")
    local out, err, code = h.run(path .. " -p x")
    assert.equal(0, code, err)
    assert.equal("\n", out)
    assert(err:find("warning: the strategy ended before its first token", 1, true), err)
    assert.equal("stop", json_of(path .. " -p x").finish)
  end)

  it("of no tokens is empty", function()
    prints("\n", "greedy --max-tokens 0 --quiet")
    assert.equal("length", json_of "beam -n 0".finish)
  end)

  it("ends at stop strings and rules", function()
    local whole = text_of "greedy -n 20 -p 'And God said'"
    local at = assert(whole:find(",", 1, true))
    assert.equal(whole:sub(1, at - 1) .. "\n",
      text_of "greedy -n 20 -p 'And God said' --stop XYZ --stop ,")
    local rule = script("rule.lua", "return function(ids) return #ids == 3 end")
    assert.equal(3, #json_of("greedy -n 20 --stop-rule " .. rule).ids)
    fails(1, "greedy --stop-rule " .. script("rule.lua", "return 3"), "returns a number")
  end)

  it("ends at the ids of --eog, or at none", function()
    local ids = json_of "greedy -n 6 -p 'And God said'".ids
    local n = 1
    while ids[n] ~= ids[3] do n = n + 1 end
    local result = json_of("greedy -n 6 -p 'And God said' --eog " .. ids[3])
    assert.equal("eos", result.finish)
    assert.same(table.move(ids, 1, n, 1, {}), result.ids)
    fails(1, "greedy --eog 99999", "id 99999 is outside the vocabulary")
  end)

  it("is the same on one thread and two", function()
    assert.equal(text_of "beam -n 12 --threads 1", text_of "beam -n 12 --threads 2")
  end)
end)

describe("a chain", function()
  it("that the strategy never asks for is warned of", function()
    local path = script("plain.lua", "return {decode = function(m, p, o, emit) emit(300) end}")
    local _, err, code = h.run(path .. " --top-k 3 -n 2")
    assert.equal(0, code, err)
    assert(err:find("does not use the sampler chain", 1, true), err)
    _, err = h.run "sample --top-k 3 -n 2"
    assert(not err:find("warning", 1, true), err)
  end)

  it("is the same by --sampler and by single options", function()
    assert.equal(text_of "sample -n 16 --temperature 0.7 --top-k 9 --seed 3",
      text_of "sample -n 16 --sampler 'temperature=0.7, top_k=9' --seed 3")
  end)
end)

describe("a script", function()
  it("that errors is told with its traceback, exit 1", function()
    local path = script("bad.lua",
      "return {decode = function(m, p, o, emit)\nlocal x\nx.y = 1 end}")
    local _, err, code = h.run(path)
    assert.equal(1, code)
    assert(err:find("bad.lua:3: attempt to index a nil value", 1, true), err)
    assert(err:find("stack traceback", 1, true))
  end)

  it("that misuses llm is told the line", function()
    local path = script("eng.lua", [[return {decode = function(model)
      local kv = model:cache()
      model:forward(kv, {99999})
    end}]])
    local _, err = fails(1, path .. " -p x", "id 99999 is outside the vocabulary")
    assert(err:find "\n  at [^\n]*eng.lua:3\n", err)
  end)

  it("that is no Lua, or returns the wrong thing, is told in one line", function()
    fails(1, script("bad.lua", "return {"), "bad.lua")
    fails(1, script("bad.lua", "return 'x'"), "returns a string, not a table")
    fails(1, script("bad.lua", "return {decode = function() return 3 end}"),
      "decode returns a number")
    fails(1, script("bad.lua", "return {decode = function() coroutine.yield() end}"), "yielded")
    fails(1, script("bad.lua", [[return {decode = function(model, prompt)
      local kv = model:cache() kv:close() model:forward(kv, prompt) end}]]), "cache is closed")
    fails(1, script("bad.lua", "return {options = {n = {type = 'odd'}}, decode = print}"),
      "unknown type 'odd'")
  end)

  it("may have options, and modules beside it", function()
    h.write(h.scratch "mymod.lua", "return {id = 321}")
    local path = script("own.lua", [[local mymod = require "mymod"
      return {about = "mine", options = {times = 2}, decode = function(model, prompt, opt, emit)
        for _ = 1, opt.times do emit(mymod.id) end end}]])
    assert.same({321, 321}, json_of(path).ids)
    assert.same({321, 321, 321}, json_of(path .. " --times 3").ids)
  end)

  it("that returns nothing is a program with its arguments", function()
    local path = script("program.lua", [[#!/usr/bin/env llmlua
      counter = 1
      io.write(arg[0]:match "[^/]+$", " ", table.concat(arg, "|"), " ", ..., " ",
        tostring(llm ~= nil))]])
    prints("program.lua --help|-x|2 --help true", path .. " --help -x 2")
    local _, err, code = h.run(script("program.lua", "error 'oops'"))
    assert.equal(1, code)
    assert(err:find("oops", 1, true))
    _, _, code = h.run(script("program.lua", "os.exit(7)"))
    assert.equal(7, code)
  end)

  it("may be a tool with main", function()
    local path = script("tool.lua", [[return {about = "a tool", options = {n_x = 3},
      main = function(model, opt) io.write(model.arch, " ", opt.n_x) return 5 end}]])
    local out, _, code = h.run(path .. " --n-x 4")
    assert.equal("llama 4", out)
    assert.equal(5, code)
  end)
end)

describe("score", function()
  it("gives each token's log-probability and the perplexity", function()
    local result = json_of "score -p 'In the beginning God created the heaven'"
    assert.equal(result.tokens, #result.logprobs)
    assert.equal(json.null, result.logprobs[1])
    local sum = 0
    for i = 2, result.tokens do sum = sum + result.logprobs[i] end
    assert(math.abs(sum - result.sum) < 1e-6)
    assert(math.abs(result.perplexity - math.exp(-sum / result.scored)) < 1e-6)
    local out = h.run "score -p 'In the beginning God created the heaven'"
    local _, n = out:gsub("\n", "")
    assert.equal(result.tokens + 1, n)
    assert(out:find("perplexity %d+%.%d+\n$"))
  end)

  it("reads a text longer than the context, in windows", function()
    local path = h.write(h.scratch "long.txt", ("And he said unto them, Go ye. "):rep(60))
    local long = json_of("score --ctx 64 -f " .. q(path))
    local whole = json_of("score --ctx 4096 -f " .. q(path))
    assert.equal(whole.scored, long.scored)
    for i = 2, 64 do assert(math.abs(whole.logprobs[i] - long.logprobs[i]) < 1e-4) end
    local near = json_of("score --ctx 64 --overlap 63 -f " .. q(path))
    assert.equal(long.scored, near.scored)
    fails(1, "score --ctx 64 --overlap 64 -f " .. q(path), "overlap 64, the context holds 64")
  end)
end)

describe("score of nothing", function()
  it("is refused", function()
    fails(2, "score", "no text to score")
    fails(2, "score -p ''", "no text to score")
    local _, err, code = h.run("score", "")
    assert.equal(2, code)
    assert(err:find("no text to score", 1, true), err)
  end)
end)

describe("a failure with --json", function()
  it("is one line of JSON with kind and message", function()
    for arguments, kind in pairs {["greedy -p x -m /nonexistent"] = "input",
      ["greedy --ctx 2 -p 'a b c d'"] = "input", ["greedy --sampler nosuch -p x"] = "misuse",
      ["score"] = "misuse", ["bench --rows 2000"] = "input",
      ["beam --beam 2000 -p x"] = "misuse"} do
      local out, err, code = h.run(arguments .. " --json")
      assert(code > 0, arguments)
      local _, n = out:gsub("\n", "")
      assert.equal(1, n, out)
      local failure = assert(json.decode(out)).error
      assert.equal(kind, failure.kind, arguments)
      assert(err:find(failure.message, 1, true), err)
    end
  end)
end)

describe("a sampler by name", function()
  it("is found beside the script, in the current folder, then among the bundled", function()
    os.execute(("mkdir -p %s %s"):format(q(h.scratch "a/samplers"), q(h.scratch "b/samplers")))
    local strategy = [[return {decode = function(model, prompt, opt, emit)
      emit(opt.sampler.filter(model:forward(model:cache(), prompt)):argmax()) end}]]
    local path = h.write(h.scratch "a/s.lua", strategy)
    local only = "return function() return function(l) return l:only {%d} end end"
    h.write(h.scratch "a/samplers/mine.lua", only:format(301))
    h.write(h.scratch "b/samplers/mine.lua", only:format(302))
    h.write(h.scratch "b/samplers/temperature.lua", only:format(303))
    local program = h.program:find "^/" and h.program or assert(os.getenv "PWD") .. "/" .. h.program
    local function id(arguments)
      local out = h.scratch "out"
      assert(os.execute(("cd %s && %s %s -p x --json --quiet </dev/null >%s"):format(
        q(h.scratch "b"), q(program), arguments, q(out))))
      return json.decode(h.read(out)).ids[1]
    end
    assert.equal(301, id(q(path) .. " --sampler mine"))
    assert.equal(302, id "greedy -n 1 --sampler mine")
    assert.equal(303, id(q(path) .. " --sampler temperature"))
  end)
end)

describe("bench", function()
  it("prints rates and the share of the memory roof", function()
    local result = json_of("bench --rows 1,2 --beams 2 --steps 3 --repeats 1 --context 16 "
      .. "--roof-mb 8")
    assert.equal(3, #result.runs)
    assert(result.bandwidth > 1e8)
    for _, run in ipairs(result.runs) do
      assert(run.prefill_tps > 0 and run.decode_tps > 0 and run.step_ms > 0 and run.roof > 0)
      assert(run.roof < 1.5)
    end
    result = json_of("bench --rows 1 --beams 8 --context 200 --against 16 --steps 8 --repeats 1 "
      .. "--roof-mb 8 --profile")
    local short, long = result.runs[2], result.runs[3]
    assert.same({16, 200, "beams"}, {short.context, long.context, short.kind})
    assert.is_nil(short.ratio)
    assert(math.abs(long.ratio * short.step_ms / long.step_ms - 1) < 1e-9)
    -- a step reads six pages of the prompt once, and 8 + 6.5 positions of each beam
    local model <close> = h.builtin()
    assert.equal((192 + 8 * 14.5) * model.position_bytes, long.kv_bytes)
    -- the profile has the two steps before the clock starts as well: one position less in the mean
    local profiled = (192 + 8 * 13.5) * model.position_bytes
    for _, line in ipairs(long.profile[2].profile) do
      if line.name == "attend" then assert(math.abs(line.mb * 1e6 / profiled - 1) < 0.001) end
    end
    fails(1, "bench --context 16 --against 9999", "positions asked, the context holds")
    fails(1, "bench --rows 2000", "2000 rows asked, --max-rows is 1024")
    fails(1, "greedy -n 1 --pages 1000000000", "pages must be 1 … 16777216, got 1000000000")
    fails(2, "bench --rows 0", "--rows: '0' is not a list of integers of at least 1")
    fails(1, "bench --rows '' --beams 0", "nothing to measure")
  end)

  it("--strategy measures strategies against greedy", function()
    local result = json_of "bench --strategy prompt_lookup,lookahead --tokens 12 --repeats 1"
    local names = {}
    for i, row in ipairs(result.strategies) do
      names[i] = row.strategy
      assert(row.same and row.tokens == 12 and row.tps > 0 and row.ratio > 0, row.strategy)
    end
    assert.same({"greedy", "prompt_lookup", "lookahead"}, names)
    assert.equal(1, result.strategies[1].ratio)
    local text = text_of("bench --strategy prompt_lookup --tokens 3 --repeats 1 --text LICENSE "
      .. "--ctx 4000")
    assert(text:find "\nprompt_lookup +3 +[%d.]+ +[%d.]+x +same\n", text)
    fails(1, "bench --strategy nothing", "nothing")
    fails(1, "bench --strategy greedy --text NOTICES.md --ctx 64", "the context holds 64")
  end)

  it("--profile tells where the time of a prefill, a step and a pass of jobs goes", function()
    local result = json_of("bench --rows 1 --beams 2 --jobs 2 --steps 9 --repeats 1 --context 16 "
      .. "--roof-mb 8 --profile")
    assert.same({2, 1, 2}, {#result.runs[1].profile, #result.runs[2].profile,
      #result.runs[3].profile})
    for _, run in ipairs(result.runs) do
      for _, measured in ipairs(run.profile) do
        local ms, share, names = 0, 0, {}
        for _, line in ipairs(measured.profile) do
          ms, share, names[line.name] = ms + line.ms, share + line.share, line
        end
        assert(math.abs(ms - measured.ms) < 0.05 * measured.ms, measured.what)
        assert(math.abs(share - 1) < 0.05, measured.what)
        assert(names.head.gbps > 0 and names.ffn_down.gops > 0 and names.attend.ms > 0)
        assert(names["waiting at barriers"] and names["Lua, scheduler"].ms > 0)
      end
    end
    local text = text_of("bench --rows 1 --beams 0 --steps 2 --repeats 1 --context 4 --roof-mb 8 "
      .. "--profile-layers")
    assert(text:find "a step of 1 row: [%d.]+ ms\n", text)
    assert(text:find "\n  ffn_down +1 ", text)
    assert(text:find "\n  waiting at barriers +[%d.]+ +[%d.]+%%\n", text)
  end)
end)

describe("ending", function()
  local function shell(command)
    local _, how, code = os.execute(command)
    return how == "signal" and 128 + code or code
  end

  it("a model that is none is told in one line, exit 1", function()
    for _, path in ipairs {"/tmp", "/nonexistent.gguf", "spec/run.lua", "/dev/null"} do
      local _, err = fails(1, "greedy -p x -m " .. path, path)
      local _, n = err:gsub("\n", "")
      assert.equal(1, n, err)
    end
  end)

  it("a full disk is told, exit 1", function()
    local err = h.scratch "err"
    for _, arguments in ipairs {"greedy -n 9", "beam -n 9 --json", "score -p x", "--help"} do
      local command = ("%s %s </dev/null >/dev/full 2>%s"):format(h.program, arguments, q(err))
      assert.equal(1, shell(command))
      assert(h.read(err):find("cannot write to standard output", 1, true), h.read(err))
    end
  end)

  it("with closed streams nothing of it goes into the script's files", function()
    local file = h.scratch "own.txt"
    local name = script("files.lua", ([[local f = io.open(%q, "w")
      return {decode = function(model, prompt, opt, emit)
        f:write "DATA" emit(300) f:close() end}]]):format(file))
    for _, closed in ipairs {">&-", "2>&-", "<&- >&- 2>&-"} do
      shell(("%s %s -p x %s"):format(h.program, name, closed))
      assert.equal("DATA", h.read(file))
    end
  end)

  it("a reader that has gone ends it quietly", function()
    local err = h.scratch "err"
    shell(("(%s greedy -n 200 --quiet </dev/null 2>%s; echo $? >>%s) | head -c 3 >/dev/null")
      :format(h.program, q(err), q(err)))
    assert(h.read(err):find "^%d+\n$", h.read(err))
  end)

  it("Ctrl-C prints what there is and exits 130, in a loop too", function()
    local endless = script("endless.lua", [[return {decode = function(m, p, o, emit)
      emit(300) while true do pcall(function() while true do end end) end end}]])
    local program = script("spin.lua", "io.write 'x' while true do end")
    local out = h.scratch "out"
    local long = "greedy -n 100000 --ctx 100000 --ignore-eog -p x"
    for _, arguments in ipairs {long, endless, program} do
      local command = "timeout --preserve-status -s INT 1 %s %s </dev/null >%s 2>/dev/null"
      assert.equal(130, shell(command:format(h.program, arguments, q(out))))
      assert.not_equal("", h.read(out))
    end
  end)

  it("Ctrl-C keeps what beam search, score and bench have", function()
    local out = h.scratch "out"
    local long = h.write(h.scratch "long.txt", ("And he said unto them, Go ye. "):rep(5000))
    for arguments, found in pairs {
      ["beam -n 100000 --ctx 100000 --ignore-eog -p x"] = "^[^\n]+\n$",
      ["score -f " .. q(long)] = "partial: %d+ tokens, %d+ scored, sum %-%d",
      ["bench --rows 1,16 --steps 300 --repeats 100 --roof-mb 4"] = "memory roof",
    } do
      local command = "timeout --preserve-status -s INT 2 %s %s </dev/null >%s 2>/dev/null"
      assert.equal(130, shell(command:format(h.program, arguments, q(out))), arguments)
      assert(h.read(out):find(found), h.read(out))
    end
  end)

  it("a model named by LLMLUA_MODEL is used", function()
    local out = h.scratch "out"
    assert.equal(0, shell(("LLMLUA_MODEL=spec/data/models/llama-f32.gguf %s greedy --json --quiet "
      .. "-p a -n 2 </dev/null >%s"):format(h.program, q(out))))
    assert.equal(2, #json.decode(h.read(out)).ids)
    assert.equal(1, shell(("LLMLUA_MODEL=/nonexistent %s greedy -n 2 </dev/null >%s 2>&1"):format(
      h.program, q(out))))
  end)
end)
