-- Many prompts: --prompts on the command line, and llm.batch from Lua.
local batch = require "llm.batch"
local json = require "llm.json"
local lines = require "llm.lines"
local new_progress = require "llm.progress"
local requests = require "llm.requests"
local h = require "spec.helper"

local q = h.quote

local function write(name, text)
  return h.write(h.scratch(name), text)
end

-- Runs a script on the lines; returns the result lines, standard error, status.
local function run(arguments, text, name)
  local path = write(name or "in.jsonl", text)
  local out, err, code = h.run(("%s --prompts %s"):format(arguments, q(path)))
  local list = {}
  for line in out:gmatch "[^\n]+" do list[#list + 1] = line end
  return list, err, code
end

local function decode(list)
  local values = {}
  for _, line in ipairs(list) do
    local value = assert(json.decode(line))
    values[value.index] = value
  end
  return values
end

-- Without timings, by index.
local function bare(list)
  local texts = {}
  for _, line in ipairs(list) do
    texts[json.decode(line).index] = line:gsub('"timings":{[^}]*}', "")
  end
  return table.concat(texts, "\n")
end

local function many(n)
  local texts = {}
  for i = 1, n do
    texts[i] = json.encode {prompt = ("And %d said unto them "):format(i), id = "p" .. i, seed = i,
      max_tokens = i % 7}
  end
  return table.concat(texts, "\n") .. "\n"
end

describe("--prompts", function()
  it("makes a line of the schema of each line", function()
    local list, err, code = run("greedy -n 5 --quiet", [[
{"prompt": "And God said", "id": "a\u00e9\"b"}
{"prompt": [1, 2, 3], "id": 9007199254740993, "max_tokens": 2}
{"prompt_ids": [4], "seed": 7}
]])
    assert.equal(0, code, err)
    assert.equal("", err)
    assert.equal(3, #list)
    local got = decode(list)
    assert.equal('aé"b', got[1].id)
    assert.equal(5, #got[1].ids)
    assert.equal(9007199254740993, got[2].id)
    assert(table.concat(list):find('"id":9007199254740993,', 1, true))
    assert.same({1, 2, 3}, got[2].prompt_ids)
    assert.equal(2, #got[2].ids)
    assert.equal(7, got[3].seed)
    assert.equal(json.null, got[3].id)
    local alone = json.decode((h.run "greedy -n 5 --quiet --json -p 'And God said'"))
    assert.equal(alone.text, got[1].text)
    assert.same(alone.ids, got[1].ids)
  end)

  it("gives each line options of its own, typed or as text, over those of the command", function()
    local got = decode((run("beam -n 3 --beam 2 --stop ZZZ --quiet", [[
{"prompt": "And", "max_tokens": "2", "beam": 3.0}
{"prompt": "And", "length_penalty": 0, "early_stopping": "never", "stop": " "}
{"prompt": "And", "seed": null}
]])))
    assert.equal(2, #got[1].ids)
    assert.equal(3, #got[1].outputs)
    assert.equal(2, #got[2].outputs)
    assert(not got[2].text:find " ")
    assert.equal(3, #got[3].ids)
  end)

  it("lets a line's sampling replace that of the command", function()
    local alone = json.decode((h.run "sample -n 6 --quiet --json --sampler top_k=1 -p And"))
    local got = decode((run("sample -n 6 --quiet --temperature 5", [[
{"prompt": "And", "sampler": "top_k=1"}
{"prompt": "And", "temperature": 0}
]])))
    assert.same(alone.ids, got[1].ids)
    assert.same(alone.ids, got[2].ids)
    got = decode((run("sample -n 6 --quiet --sampler temperature=5",
      '{"prompt": "And", "top_k": 1}')))
    assert.same(alone.ids, got[1].ids)
  end)

  it("answers what it cannot read with an error line, goes on, and exits 3", function()
    local bad = {
      {"nonsense", "not JSON"},
      {"[1, 2]", "not a JSON object"},
      {"3", "not a JSON object"},
      {"null", "not a JSON object"},
      {'{"prompt": "x"} {}', "more than one value"},
      {'{"prompt": "x\xff"}', "no UTF-8 from byte 14 on"},
      {("["):rep(300000), "not JSON"},
      {'{"id": "k"}', "no prompt", "k"},
      {'{"prompt": 3, "id": 4}', "prompt is a number, not a text or a list of ids", 4},
      {'{"prompt": "x", "prompt_ids": [1]}', "prompt and prompt_ids: give one of them"},
      {'{"prompt": {"a": 1}}', "prompt is an object, not a text or a list of ids"},
      {'{"prompt": {}}', "prompt is an object, not a text or a list of ids"},
      {'{"prompt_ids": {}}', "prompt_ids is an object, not a list of ids"},
      {'{"prompt": "x",}', "not JSON: unexpected '}', byte 16"},
      {'{"prompt": "x" "id": 1}', "not JSON: unexpected '\"id\"', byte 16"},
      {'{"prompt": "x" /* or y */}', "not JSON: unexpected '/', byte 16"},
      {'{"prompt"}', "not JSON: unexpected '}', byte 10"},
      {'["prompt": "x"]', "not JSON"},
      {'{"prompt": "x\ty"}', "not JSON: a control character in a text, byte 12"},
      {'{"prompt": "\\x41"}', "not JSON: no escape of JSON, byte 12"},
      {'{"prompt": "\\ud83d"}', "not JSON: half of a surrogate pair, byte 12"},
      {'{"prompt": "\\ude00"}', "not JSON: half of a surrogate pair, byte 12"},
      {'{"prompt": "x", "seed": 01}', "not JSON: '01' is no value, byte 25"},
      {'{"prompt": "x", "temperature": .5}', "not JSON"},
      {'{"prompt": "x", "stop": {"a": 1}}', 'stop: {"a":1} is not a list of strings'},
      {'{"prompt": "x", "sampler": "./greedy.lua"}', "a file; lines may only name samplers"},
      {'{"prompt": "x", "sampler": [{"name": "../x"}]}', "a file; lines may only name samplers"},
      {'{"prompt": "' .. ("x"):rep(64 * 256 + 1) .. '"}', "prompt too long: 16385 bytes"},
      {'{"prompt": [1, "x"]}', "place 2 holds no token id"},
      {'{"prompt": [1, 99999]}', "id 99999 at place 2 is not in the vocabulary of "},
      {'{"prompt": [-1]}', "id -1 at place 1"},
      {'{"prompt": "x", "id": 1.5}', "id must be a text or an integer"},
      {'{"prompt": "x", "id": 123456789012345678901}', "id must be a text or an integer"},
      {'{"prompt": "x", "beem": 3}', "unknown option 'beem'; known: id, prompt, "},
      {'{"prompt": "x", "max_tokens": -1}', "max_tokens: -1 is not an integer of at least 0"},
      {'{"prompt": "x", "stop": ""}', ": stop: an empty text would stop at once"},
      {'{"prompt": "x", "sampler": "nosuch"}', "sampler nosuch: unknown sampler"},
      {'{"prompt": "x", "sampler": "top_k=2", "top_k": 2}', "give one of them"},
      {'{"prompt": "' .. ("word "):rep(3000) .. '"}', "tokens, the context holds 64"},
    }
    for _, name in ipairs {"model", "file", "stop_rule", "ctx", "kv", "eog", "ignore_eog", "out",
      "jobs"} do
      bad[#bad + 1] = {('{"prompt": "x", "%s": "1"}'):format(name),
        ("'%s' is an option of the whole run"):format(name)}
    end
    local texts = {}
    for i, case in ipairs(bad) do texts[i] = case[1] end
    texts[#texts + 1] = '{"prompt": "fine \\ud83d\\ude00 \\"", "id": -12, "top_p": 9.5e-1}'
    local list, err, code = run("greedy -n 2 --ctx 64", table.concat(texts, "\n"))
    assert.equal(3, code, err)
    assert(err:find(("%d of %d jobs failed\n"):format(#bad, #bad + 1), 1, true), err)
    local got = decode(list)
    assert.equal(#bad + 1, #list)
    for i, case in ipairs(bad) do
      assert.equal("input", got[i].error.kind)
      assert(got[i].error.message:find("line " .. i .. ": ", 1, true), got[i].error.message)
      assert(got[i].error.message:find(case[2], 1, true), got[i].error.message)
      assert.equal(case[3] or json.null, got[i].id)
    end
    assert.equal(2, #got[#bad + 1].ids)
  end)

  it("a sampler or a stop rule that is never made ends after some seconds", function()
    local loop = h.scratch "samplers/loop.lua"
    assert(os.execute("mkdir -p " .. q(h.scratch "samplers")))
    h.write(loop, "while true do pcall(error) end")
    local script = write("plain.lua", "return {decode = function(_, _, _, emit) emit(300) end}")
    local list = run(q(script) .. " --quiet --max-seconds 1",
      '{"prompt": "x", "sampler": "loop"}\n{"prompt": "x"}')
    local got = decode(list)
    assert.equal("line 1: sampler loop: took more than 1 s to be made", got[1].error.message)
    assert.same({300}, got[2].ids)
    local _, err, code = h.run(("greedy -p x --max-seconds 1 --sampler %s"):format(q(loop)))
    assert.equal(2, code)
    assert(err:find("loop.lua: took more than 1 s to be made", 1, true), err)
    _, err, code = h.run(("greedy -p x --max-seconds 1 --stop-rule %s"):format(q(loop)))
    assert.equal(1, code)
    assert(err:find("loop.lua: took more than 1 s to be made", 1, true), err)
  end)

  it("fails the job whose strategy raises, alone, with its traceback", function()
    local path = write("moody.lua", [[return {decode = function(model, prompt, opt, emit)
      if prompt[1] == 3 then local x = nil; x.y = 1 end
      emit(300) emit(301)
    end}]])
    local list, err, code = run(path, '{"prompt": [1]}\n{"prompt": [3]}\n{"prompt": [5]}\n')
    assert.equal(3, code)
    assert(err:find("1 of 3 jobs failed", 1, true), err)
    local got = decode(list)
    assert.equal("script", got[2].error.kind)
    assert(got[2].error.message:find "moody.lua:2:", got[2].error.message)
    assert(got[2].error.traceback:find "stack traceback")
    assert.same({300, 301}, got[1].ids)
    assert.same({300, 301}, got[3].ids)
  end)

  it("skips blank lines, takes CRLF, a byte order mark and a last line without end", function()
    local list, err, code = run("greedy -n 1 --quiet",
      '\u{FEFF}{"prompt": "a"}\r\n\r\n  \n{"prompt": "b"}\r\n{"prompt": "c"}')
    assert.equal(0, code, err)
    local got = decode(list)
    assert.equal(3, #got)
    local text = decode((run("greedy -n 1 --quiet", "\u{FEFF}a\r\n\n \nb\r\nc", "in.txt")))
    for i = 1, 3 do assert.same(got[i].prompt_ids, text[i].prompt_ids) end
  end)

  it("takes plain text by its name, its first character, or --prompts-format", function()
    local object = '{"prompt": "a"}\n'
    assert.equal(1, #decode((run("greedy -n 1 --quiet", object, "in.data")))[1].ids)
    local plain = decode((run("greedy -n 1 --quiet", "a\n{b}\n", "in.data")))
    assert.equal(2, #plain)
    local forced = decode((run("greedy -n 1 --quiet --prompts-format text", object)))
    assert.equal(forced[1].prompt_ids[1],
      decode((run("greedy -n 1 --quiet", object, "in.txt")))[1].prompt_ids[1])
    local _, _, code = run("greedy -n 1 --quiet --prompts-format jsonl", "a\n", "in.txt")
    assert.equal(3, code)
  end)

  it("reads standard input, also one that waits for its answer", function()
    local out, err, code = h.run("greedy -n 2 --quiet --prompts -", "And\nThe\n")
    assert.equal(0, code, err)
    assert.equal(2, select(2, out:gsub("\n", "")))
    local answer = h.scratch "answer"
    os.remove(answer)
    local command = ("(echo And; i=0; while [ ! -s %s ] && [ $i -lt 100 ]; do sleep 0.05; "
      .. "i=$((i+1)); done; [ $i -lt 100 ] && echo The) | %s greedy -n 2 --quiet --prompts - >%s")
    assert(os.execute(command:format(q(answer), h.program, q(answer))))
    assert.equal(2, select(2, h.read(answer):gsub("\n", "")))
  end)

  it("makes the same lines with any --jobs, threads and order, but for timings", function()
    local text = many(40)
    local one = bare((run("sample --top-p 0.9 --quiet --jobs 1", text)))
    for _, more in ipairs {"--jobs 3", "--jobs 40 --threads 2", "--jobs 7 --ordered"} do
      assert.equal(one, bare((run("sample --top-p 0.9 --quiet " .. more, text))), more)
    end
    local alone = json.decode((h.run("sample --top-p 0.9 --quiet --json -n 6 --seed 13 -p "
      .. "'And 13 said unto them '")))
    assert.same(alone.ids, decode((run("sample --top-p 0.9 --quiet", text)))[13].ids)
  end)

  it("makes the same lines where jobs are set aside for lack of pages", function()
    local texts = {}
    for i = 1, 20 do
      texts[i] = ('{"prompt": "And %d said unto them", "max_tokens": 40, "seed": %d}'):format(i, i)
    end
    local text = table.concat(texts, "\n")
    local command = "sample --top-p 0.9 --ignore-eog --quiet --jobs 20"
    local short = run(command .. " --pages 8 --swap-pages 0", text)
    assert.equal(bare((run(command, text))), bare(short))
    assert(table.concat(short):find '"recomputed_tokens":[1-9]', "none was set aside")
  end)

  it("keeps the order of the prompts with --ordered", function()
    local texts = {}
    for i = 1, 60 do
      texts[i] = ('{"prompt": "And", "max_tokens": %d}'):format(i == 1 and 60 or 60 - i)
    end
    texts[30] = "bad"
    local list = run("greedy --ignore-eog --quiet --ordered --jobs 4", table.concat(texts, "\n"))
    assert.equal(60, #list)
    for i, line in ipairs(list) do assert.equal(i, json.decode(line).index) end
  end)

  it("of nothing makes nothing", function()
    local list, err, code = run("greedy", "")
    assert.equal(0, code, err)
    assert.equal(0, #list)
  end)

  it("is refused with what it does not go with", function()
    local path = q(write("in.txt", "a\n"))
    for arguments, message in pairs {
      ["--out x"] = "--out needs --prompts",
      ["--shard 1/2"] = "--shard needs --prompts",
      ["-p x --prompts " .. path] = "--prompts and --prompt: give one of them",
      ["--overwrite --prompts " .. path] = "--overwrite needs --out",
      ["--out '' --prompts " .. path] = "--out: '' is no path",
      ["--shard 3/2 --prompts " .. path] = "--shard: '3/2' is not I/N with I from 1 to N",
      ["--shard x --prompts " .. path] = "--shard: 'x' is not I/N",
      ["--jobs 0 --prompts " .. path] = "--jobs: '0' is not an integer from 1 to 4096",
      ["--sampler nosuch --prompts " .. path] = "unknown sampler",
      ["--stop '' --prompts " .. path] = "--stop: an empty text",
    } do
      local out, err, code = h.run("greedy " .. arguments)
      assert.equal(2, code, arguments)
      assert.equal("", out)
      assert(err:find(message, 1, true), err)
    end
    local _, err, code = h.run "greedy --prompts /nonexistent"
    assert.equal(1, code)
    assert(err:find("/nonexistent: No such file", 1, true), err)
    _, err, code = h.run "greedy --prompts spec"
    assert.equal(1, code)
    assert(err:find("spec is a folder", 1, true), err)
  end)

  it("gives a rank of srun or mpirun its share", function()
    local path, out = q(write("in.txt", "a\nb\nc\nd\ne\n")), h.scratch "out"
    local function indexes(variables, arguments)
      assert(os.execute(("%s %s greedy -n 1 --prompts %s %s >%s 2>%s"):format(variables, h.program,
        path, arguments or "", q(out), q(h.scratch "err"))))
      local list = {}
      for line in h.read(out):gmatch "[^\n]+" do list[#list + 1] = json.decode(line).index end
      table.sort(list)
      return table.concat(list, " ")
    end
    local slurm = "SLURM_PROCID=1 SLURM_NTASKS=2"
    assert.equal("2 4", indexes(slurm))
    assert(h.read(h.scratch "err"):find("shard 2 of 2 (SLURM_PROCID)", 1, true))
    assert.equal("1 2 3 4 5", indexes("SLURM_PROCID=0 SLURM_NTASKS=1"))
    assert.equal("1 2 3 4 5", indexes(slurm .. " SLURM_JOB_ID=5")) -- sbatch without srun
    assert.equal("2 4", indexes(slurm .. " SLURM_JOB_ID=5 SLURM_STEP_ID=0"))
    assert.equal("1 4", indexes("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=3"))
    assert.equal("3", indexes("PMI_RANK=2 PMI_SIZE=3"))
    assert.equal("1 3 5", indexes(slurm, "--shard 1/2"))
    assert.equal("1 2 3 4 5", indexes(slurm, "--shard 1/1"))
  end)

  it("tells figures on standard error, and with --quiet nothing", function()
    local _, err = run("greedy -n 3", "a\nb\n", "in.txt")
    assert(err:find("2 prompts in %d+%.%d s, %d+ tokens at "), err)
    assert(not err:find("\27", 1, true), err)
    _, err = run("greedy -n 3 --sampler top_k=2", "a\n", "in.txt")
    assert(not err:find("does not use", 1, true) or err:find("top_k", 1, true), err)
  end)

  it("tells with --explain what each sampler of each prompt kept", function()
    local _, err, code = run("sample --sampler 'top_k=7, temperature=0.5' -n 2 --ignore-eog "
      .. "--quiet --explain", "a\nb\n", "in.txt")
    assert.equal(0, code, err)
    for prompt = 1, 2 do
      for step = 1, 2 do
        local line = "prompt %d, step %d: top_k kept 7 of %%d+, mass 0%%.%%d%%d%%d%%d\n"
        assert(err:find(line:format(prompt, step)), err)
      end
    end
    assert.equal(8, select(2, err:gsub("\n", "")))
  end)

  it("tells how far it is and how long it takes", function()
    local progress = new_progress(100, 20, false)
    for _ = 1, 40 do progress:add {counts = {output = 5}, timings = {prefix_tokens = 2}} end
    local text = progress:text(progress.start + 10)
    assert(text:find "^60/100, 0 tokens/s, 10 s left$", text)
    assert(progress:figures():find "^40 prompts in %d+%.%d s, 200 tokens at ", progress:figures())
    assert(progress:figures():find(" 80 prompt tokens re-used", 1, true))
    progress = new_progress(nil, 0, false)
    assert.equal("0 done, 0 tokens/s", progress:text(progress.start + 1))
  end)

  it("refuses a line that is too long, without keeping it", function()
    local path = write("long.txt", ("x"):rep((16 << 20) + 5) .. "\nb\n")
    local prompts = assert(lines.prompts(path, "auto"))
    local index, request, message = prompts:next()
    assert.equal(1, index)
    assert.is_nil(request)
    assert.equal("line 1: 16777221 bytes, a line may have 16777216", message)
    index, request = prompts:next()
    assert.equal(2, index)
    assert.same({prompt = "b"}, request)
    assert.is_nil(prompts:next())
  end)
end)

describe("llm.batch", function()
  local model
  setup(function() model = h.builtin() end)
  teardown(function() model:close() end)

  local function collect(...)
    local list = {}
    for result in batch.run(...) do list[#list + 1] = result end
    table.sort(list, function(a, b) return a.index < b.index end)
    return list
  end

  it("runs a strategy on a list or an iterator of texts, ids and tables", function()
    local prompts = {"And God said", {1, 2, 3}, {prompt = "x", id = "k", max_tokens = 2}, 5}
    local list = collect(model, "greedy", prompts, {max_tokens = 3, jobs = 2})
    assert.equal(4, #list)
    assert.equal(3, #list[1].ids)
    assert.same({1, 2, 3}, list[2].prompt_ids)
    assert.equal("k", list[3].id)
    assert.equal(2, #list[3].ids)
    assert.equal("input", list[4].error.kind)
    assert.is_nil(list[1].id)
    local i = 0
    local again = collect(model, "greedy", function()
      i = i + 1
      return prompts[i]
    end, {max_tokens = "3"})
    for k = 1, 3 do assert.same(list[k].ids, again[k].ids) end
  end)

  it("takes a path, and a source", function()
    local source = [[return {options = {id = 300},
      decode = function(m, p, opt, emit) emit(opt.id) end}]]
    local path = write("one.lua", source)
    assert.same({300}, collect(model, path, {"x"})[1].ids)
    assert.same({301}, collect(model, {source = source}, {"x"}, {id = 301})[1].ids)
  end)

  it("reads no further than it must, and can be left", function()
    local n = 0
    local function endless()
      n = n + 1
      return "And"
    end
    local taken = 0
    for result in batch.run(model, "greedy", endless, {max_tokens = 2, jobs = 3, ordered = true}) do
      taken = taken + 1
      assert.equal(taken, result.index)
      if taken == 10 then break end
    end
    assert(n <= 10 + 4 * 3, n)
    collectgarbage()
  end)

  it("gives its pages back when its loop is left, or dropped", function()
    local function free() return (requests.pages(model)) end
    local before, prompts = free(), {"And", "The", "In"}
    for result in batch.run(model, "greedy", prompts, {max_tokens = 9, jobs = 3}) do
      if result.ids then break end
    end
    assert.equal(before, free())
    do
      local step = batch.run(model, "greedy",
        {{prompt = "And", max_tokens = 1}, {prompt = "The", max_tokens = 40}}, {jobs = 2})
      assert.equal(1, step().index)
      assert(free() < before)
    end
    collectgarbage()
    collectgarbage()
    assert.equal(before, free())
  end)

  it("hands on what the iterator of the prompts yields, and never as a result", function()
    local function prompts()
      local i = 0
      return function()
        i = i + 1
        return i == 1 and coroutine.yield("more", 1) or i == 2 and "And" or nil
      end
    end
    local co = coroutine.wrap(function()
      return #collect(model, "greedy", prompts(), {max_tokens = 1})
    end)
    assert.same({"more", 1}, {co()})
    assert.equal(2, co("The"))
    local ok, wrong
    ("x"):gsub("x", function() -- from where nothing can yield
      ok, wrong = pcall(collect, model, "greedy", prompts(), {max_tokens = 1})
    end)
    assert.is_false(ok)
    assert.equal("misuse", wrong.kind)
  end)

  it("raises what is wrong with its arguments", function()
    local function refuses(message, ...)
      local ok, wrong = pcall(batch.run, ...)
      assert.is_false(ok)
      assert(tostring(wrong):find(message, 1, true), tostring(wrong))
    end
    refuses("model must be an llm.Model, got a nil", nil, "greedy", {})
    refuses("no script 'nosuch'", model, "nosuch", {})
    refuses("unknown option 'beem'; known: ", model, "beam", {}, {beem = 3})
    refuses("unknown option 'ctx'; known: ", model, "beam", {}, {ctx = 3})
    refuses("--beam: 0 is not an integer of at least 1", model, "beam", {}, {beam = 0})
    refuses("prompts must be a list or a function, got a number", model, "beam", 3)
    refuses("unknown sampler", model, "beam", {}, {sampler = "nosuch"})
    refuses("returns no table with a function decode", model, {source = "return 3"}, {})
  end)

  it("hands on an error of the iterator", function()
    local ok, wrong = pcall(collect, model, "greedy", function() error("broken", 0) end)
    assert.is_false(ok)
    assert.equal("broken", wrong)
  end)

  local module = os.getenv "LLMLUA_MODULE" or "build/llm.so"
  local can = os.execute "command -v lua5.4 >/dev/null" and h.exists(module)
  local with = can and it or function(sentence) pending(sentence .. " (no lua5.4 or llm.so)") end

  with("gives a stock lua5.4 what the program gives", function()
    local path, out = write("stock.lua", [[
      local llm, batch = require "llm", require "llm.batch"
      local model = assert(llm.load("models/builtin.gguf", {threads = 1}))
      local opts = {max_tokens = 5, top_k = 1, ordered = true}
      for result in batch.run(model, "scripts/sample.lua", {"And", "The"}, opts) do
        io.write(table.concat(result.ids, " "), "\n")
      end]]), h.scratch "stock.out"
    os.execute(("LUA_PATH='lua/?.lua;;' LUA_CPATH='%s/?.so' LD_PRELOAD='%s' lua5.4 %s >%s 2>&1")
      :format(module:match "^(.*)/", os.getenv "LLMLUA_PRELOAD" or "", q(path), q(out)))
    local expected = ""
    for _, result in ipairs(collect(model, "greedy", {"And", "The"}, {max_tokens = 5})) do
      expected = expected .. table.concat(result.ids, " ") .. "\n"
    end
    assert.equal(expected, h.read(out))
  end)
end)
