-- --out: a file that is continued, whatever ended the run before.
local json = require "llm.json"
local results = require "llm.results"
local sys = require "llm.sys"
local h = require "spec.helper"

local q = h.quote

local function shell(command, ...)
  local _, how, code = os.execute(command:format(...))
  return how == "signal" and 128 + code or code
end

local function input(name, n)
  local texts = {}
  for i = 1, n do
    texts[i] = i % 10 == 3 and "{bad" or ('{"prompt": "And %d said", "id": %d, "max_tokens": %d}')
      :format(i, i, 1 + i % 5)
  end
  return h.write(h.scratch(name), table.concat(texts, "\n") .. "\n")
end

-- The lines of a file by index, without timings; raises if one is torn or there twice.
local function read(path)
  local lines, n, text = {}, 0, h.read(path)
  assert(text == "" or text:sub(-1) == "\n", "torn")
  for line in text:gmatch "[^\n]+" do
    local index = assert(json.decode(line)).index
    assert(not lines[index], "twice: " .. index)
    lines[index], n = line:gsub('"timings":{[^}]*}', ""), n + 1
  end
  return lines, n
end

local function remove(path)
  for _, ending in ipairs {"", ".state", ".tmp"} do os.remove(path .. ending) end
end

local function run(arguments, path, out)
  return select(2, h.run(("sample --top-p 0.9 --prompts %s --out %s %s"):format(q(path), q(out),
    arguments or "")))
end

local function run_code(...)
  local _, err, code = h.run(("sample --top-p 0.9 --prompts %s --out %s %s"):format(...))
  return code, err
end

describe("--out", function()
  local path, out, whole
  setup(function()
    path, out = input("in.jsonl", 25), h.scratch "out.jsonl"
    run("", path, h.scratch "whole.jsonl")
    whole = read(h.scratch "whole.jsonl")
  end)
  before_each(function() remove(out) end)

  it("holds all lines, and the same command has nothing more to do", function()
    local code, err = run_code(q(path), q(out), "")
    assert.equal(3, code)
    assert(err:find("3 of 25 jobs failed", 1, true), err)
    assert.same(whole, (read(out)))
    local before = h.read(out)
    code, err = run_code(q(path), q(out), "--jobs 3 --ordered --threads 1")
    assert.equal(3, code)
    assert(err:find("all 25 are done already", 1, true), err)
    run("--ordered", path, out)
    local last = 0
    for line in h.read(out):gmatch "[^\n]+" do
      local index = json.decode(line).index
      assert.equal(last + 1, index)
      last = index
    end
    assert.equal(#before, #h.read(out))
  end)

  it("is continued after a line that was cut, or a file that was not begun", function()
    run("", path, out)
    local text, state = h.read(out), h.read(out .. ".state")
    for _, n in ipairs {0, 1, 200, 5000, #text - 1} do
      h.write(out, text:sub(1, n))
      assert.equal(3, run_code(q(path), q(out), ""))
      assert.same(whole, (read(out)))
    end
    os.remove(out) -- the side file was written, and then nothing
    assert.equal(3, run_code(q(path), q(out), ""))
    assert.same(whole, (read(out)))
    for _, torn in ipairs {"", state:sub(1, 20), state:sub(1, -2)} do
      os.remove(out)
      h.write(out .. ".state", torn)
      assert.equal(3, run_code(q(path), q(out), ""))
      assert.same(whole, (read(out)))
      assert.equal(state, h.read(out .. ".state"))
      h.write(out, "")
      h.write(out .. ".state", torn)
      assert.equal(3, run_code(q(path), q(out), ""))
      assert.same(whole, (read(out)))
    end
  end)

  it("of another model, script, option or input is refused by name, unless --overwrite", function()
    run("", path, out)
    local text = h.read(out)
    local other = input("other.jsonl", 26)
    for arguments, message in pairs {
      [("sample --top-p 0.9 --prompts %s"):format(q(other))] = "another input",
      [("sample --top-p 0.8 --prompts %s"):format(q(path))] = "another top_p: 0.9, now 0.8",
      [("sample --prompts %s"):format(q(path))] = "another top_p: 0.9, now none",
      [("sample --top-p 0.9 --seed 3 --prompts %s"):format(q(path))] = "another seed: 0, now 3",
      [("greedy --top-p 0.9 --prompts %s"):format(q(path))] = "another script",
      [("sample --top-p 0.9 --device ref --prompts %s"):format(q(path))] = "another device",
      [("sample --top-p 0.9 -m spec/data/models/llama-f32.gguf --prompts %s"):format(q(path))] =
        "another model",
    } do
      local _, err, code = h.run(arguments .. " --out " .. q(out))
      assert.equal(1, code, err)
      assert(err:find(message, 1, true), err)
      assert(err:find("--overwrite begins anew", 1, true), err)
      assert.equal(text, h.read(out))
    end
    local code = run_code(q(other), q(out), "--overwrite")
    assert.equal(3, code)
    assert.equal(26, select(2, read(out)))
  end)

  it("is not taken for its own where nothing says so", function()
    h.write(out, "my thesis\n")
    local code, err = run_code(q(path), q(out), "")
    assert.equal(1, code)
    assert(err:find("nothing says what made it", 1, true), err)
    assert.equal("my thesis\n", h.read(out))
    assert.is_false(h.exists(out .. ".state"))
    assert.equal(3, (run_code(q(path), q(out), "--overwrite")))
    assert.same(whole, (read(out)))
    h.write(out, "no result\n" .. h.read(out))
    code, err = run_code(q(path), q(out), "")
    assert.equal(1, code)
    assert(err:find("line 1 is no result line", 1, true), err)
    local prompts = h.read(path)
    code, err = run_code(q(path), q(path), "--overwrite")
    assert.equal(1, code)
    assert(err:find("would overwrite the prompts", 1, true), err)
    assert.equal(prompts, h.read(path))
    assert.equal(1, (run_code(q(path), q "spec", "")))
    assert.equal(1, (run_code(q(path), q "nosuch/folder/out.jsonl", "")))
  end)

  it("keeps failed lines, and with --retry-errors tries those again", function()
    local moody = h.write(h.scratch "moody.lua", ([[
      return {decode = function(model, prompt, opt, emit)
        local file = io.open(%q)
        if not file and #prompt %% 2 == 0 then error "not today" end
        if file then file:close() end
        emit(300)
      end}]]):format(h.scratch "mood"))
    local prompts = h.write(h.scratch "in.txt", "a b\na b c\na\na b c d\n")
    os.remove(h.scratch "mood")
    local command = ("%s --prompts %s --out %s"):format(q(moody), q(prompts), q(out))
    local _, err, code = h.run(command)
    assert.equal(3, code, err)
    local n_failed = 0
    for _, line in pairs(read(out)) do
      if line:find "not today" then n_failed = n_failed + 1 end
    end
    assert(n_failed > 0 and n_failed < 4, n_failed)
    h.write(h.scratch "mood", "")
    _, err, code = h.run(command)
    assert.equal(3, code, err)
    _, err, code = h.run(command .. " --retry-errors --max-seconds 5")
    assert.equal(0, code, err)
    assert(err:find(n_failed .. " failed ones are tried again", 1, true), err)
    assert.equal(4, select(2, read(out)))
    assert(not h.read(out):find("not today", 1, true))
  end)

  it("spares the prompts, under whatever name it would write over them", function()
    for _, ending in ipairs {".state", ".tmp"} do
      local prompts = h.write(out .. ending, "And\n")
      local code, err = run_code(q(prompts), q(out), "--overwrite")
      assert.equal(1, code)
      assert(err:find("would overwrite the prompts", 1, true), err)
      assert.equal("And\n", h.read(prompts))
      remove(out)
    end
  end)

  it("that is a link stays one, and leads to all lines", function()
    local link, target = h.scratch "link.jsonl", h.scratch "target.jsonl"
    remove(target)
    os.remove(link)
    assert(os.execute(("ln -s target.jsonl %s"):format(q(link))))
    local code, err = run_code(q(path), q(link), "")
    assert.equal(1, code)
    assert(err:find("is a link that leads nowhere", 1, true), err)
    assert.is_false(h.exists(link .. ".state"))
    h.write(target, "")
    for _, more in ipairs {"--jobs 3", "--jobs 3 --ordered --retry-errors"} do
      assert.equal(3, (run_code(q(path), q(link), more)))
      assert.same(whole, (read(target)))
      assert.equal(0, shell("test -L %s", q(link)))
      assert.is_true(h.exists(target .. ".state"))
    end
  end)

  it("with lines of more prompts than there are is refused", function()
    run("", path, out)
    local text = h.read(out):gsub('"index":25,', '"index":26,')
    h.write(out, text)
    local code, err = run_code(q(path), q(out), "")
    assert.equal(1, code)
    assert(err:find("it has a line of prompt 26, the input 25 prompts", 1, true), err)
    assert.equal(text, h.read(out))
  end)

  it("or --prompts that is a pipe without another end waits, until Ctrl-C", function()
    local pipe = h.scratch "pipe"
    os.remove(pipe)
    assert.equal(0, shell("mkfifo %s", q(pipe)))
    for _, arguments in ipairs {"--prompts " .. q(pipe),
      ("--prompts %s --out %s"):format(q(path), q(pipe))} do
      local command = "timeout --preserve-status -s INT 1 %s greedy %s </dev/null >%s 2>&1"
      assert.equal(130, shell(command, h.program, arguments, q(h.scratch "err")))
      local err = h.read(h.scratch "err"):gsub("llmlua: computing on the CPU: [^\n]*\n", "")
      assert.equal("llmlua: interrupted\n", err)
    end
  end)

  it("is written by one process at a time", function()
    h.write(out, "")
    local side <close> = assert(sys.open(out .. ".state", "append"))
    assert.is_true(side:lock())
    local code, err = run_code(q(path), q(out), "")
    assert.equal(1, code)
    assert(err:find("is being written by another process", 1, true), err)
  end)

  it("of standard input cannot be continued", function()
    local arguments = "greedy -n 1 --prompts - --out " .. q(out)
    local _, _, code = h.run(arguments, "And\nThe\n")
    assert.equal(0, code)
    local _, err
    _, err, code = h.run(arguments, "And\nThe\n")
    assert.equal(1, code)
    assert(err:find("what standard input held cannot be read again", 1, true), err)
    _, _, code = h.run(arguments .. " --overwrite", "And\n")
    assert.equal(0, code)
    assert.equal(1, select(2, read(out)))
  end)

  it("may be a device, beside which nothing is kept", function()
    assert.equal(3, (run_code(q(path), q "/dev/null", "")))
    assert.is_false(h.exists "/dev/null.state")
    local code, err = run_code(q(path), q "/dev/full", "")
    assert.equal(1, code)
    assert(err:find("cannot write: /dev/full: No space left on device", 1, true), err)
  end)

  it("of a full disk ends with a message and whole lines, and is continued", function()
    local command = ("(ulimit -f 5; exec %s sample --top-p 0.9 --prompts %s --out %s "
      .. ">/dev/null 2>%s)"):format(h.program, q(path), q(out), q(h.scratch "err"))
    assert.equal(1, shell("%s", command))
    local err = h.read(h.scratch "err")
    assert(err:find("cannot write: ", 1, true), err)
    assert(err:find("File too large", 1, true), err)
    local _, n = read(out)
    assert(n > 0 and n < 25, n)
    assert.equal(3, run_code(q(path), q(out), ""))
    assert.same(whole, (read(out)))
  end)

  it("is continued after Ctrl-C, which exits 130", function()
    local long = h.scratch "long.txt"
    h.write(long, ("And God said\n"):rep(3000))
    local command = ("greedy -n 4 --prompts %s --out %s"):format(q(long), q(out))
    -- Sends the signal when the file of results has grown.
    local function ended_by(signal)
      return shell("before=$(stat -c %%s %s 2>/dev/null || echo 0); "
        .. "%s %s >/dev/null 2>%s & pid=$!; "
        .. "until [ \"$(stat -c %%s %s 2>/dev/null || echo 0)\" -gt \"$before\" ] "
        .. "|| ! kill -0 $pid; do sleep 0.02; done; kill -%s $pid; wait $pid", q(out), h.program,
        command, q(h.scratch "err"), q(out), signal)
    end
    assert.equal(130, ended_by "INT")
    local err = h.read(h.scratch "err")
    assert(err:find("interrupted: %d+ of 3000 done; the same command continues"), err)
    local _, n = read(out)
    assert(n > 0 and n < 3000, n)
    assert.equal(143, ended_by "TERM")
    assert(h.read(h.scratch "err"):find(("holds %d of 3000 results"):format(n), 1, true))
  end)

  it("loses no line, doubles none and tears none in fifty kills", function()
    local long = input("long.jsonl", 240)
    run("", long, h.scratch "long.out")
    local expected = read(h.scratch "long.out")
    local modes, n_killed, n_runs = {"", "--ordered", "--retry-errors", "--jobs 5"}, 0, 0
    math.randomseed(20)
    while n_killed < 50 do
      n_runs = n_runs + 1
      -- In the foreground it waits until the killed program is gone, and with it the lock.
      local code = shell("timeout --foreground -s KILL %.3f %s sample --top-p 0.9 --prompts %s "
        .. "--out %s %s >/dev/null 2>%s", 0.005 + math.random() * 0.09, h.program, q(long), q(out),
        modes[n_runs % #modes + 1], q(h.scratch "err"))
      if code == 137 then
        n_killed = n_killed + 1
        local text = h.exists(out) and h.read(out) or ""
        local seen = results.set()
        for line in text:gmatch "([^\n]+)\n" do
          assert(seen:add(assert(results.read_line(line))), "twice")
        end
      else
        assert.equal(3, code, h.read(h.scratch "err"))
        assert.same(expected, (read(out)))
        remove(out)
      end
      assert(n_runs < 400, n_runs)
    end
    assert.equal(3, run_code(q(long), q(out), ""))
    assert.same(expected, (read(out)))
    assert.is_false(h.exists(out .. ".tmp"))
  end)

  it("of a shard has the shard's name", function()
    for i = 1, 3 do run(("--shard %d/3"):format(i), path, out) end
    local n = 0
    for i = 1, 3 do
      for index in pairs(read(h.scratch(("out.%d-of-3.jsonl"):format(i)))) do
        assert.equal(i - 1, (index - 1) % 3)
        n = n + 1
      end
    end
    assert.equal(25, n)
    assert.is_false(h.exists(out))
    local text = h.read(h.scratch "out.1-of-3.jsonl")
    local err = run("--shard 1/3", path, out)
    assert(err:find("all 9 are done already", 1, true), err)
    assert.equal(text, h.read(h.scratch "out.1-of-3.jsonl"))
  end)
end)

describe("a set of indexes", function()
  it("holds what was added, once", function()
    local set = results.set()
    for _, i in ipairs {1, 63, 64, 65, 1000000} do assert.is_true(set:add(i)) end
    assert.is_false(set:add(64))
    assert.equal(5, set.n)
    assert.is_true(set:has(1000000))
    assert.is_false(set:has(2))
  end)
end)
