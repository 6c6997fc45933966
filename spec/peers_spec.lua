-- scripts/peers.sh, with programs that print figures known beforehand in the place of the peers.
local h = require "spec.helper"

local q = h.quote

-- A program at PATH that prints what `body`, shell text, does.
local function program(path, body)
  h.write(path, "#!/bin/sh\n" .. body .. "\n")
  assert(os.execute("chmod +x " .. q(path)))
  return path
end

-- A folder as llama.cpp's build leaves it, with such programs; they note their arguments.
local function build(name, bench, batched)
  local folder = h.scratch(name)
  assert(os.execute("mkdir -p " .. q(folder .. "/bin")))
  program(folder .. "/bin/llama-bench", [[case $* in
    --version) echo "version: 7 of ]] .. name .. [[" >&2; exit ;;
    esac
    echo "$*" >>"${0%/bin/*}/arguments"
    ]] .. bench)
  program(folder .. "/bin/llama-batched-bench", batched or "exit 1")
  return folder
end

local function model(name)
  return h.write(h.scratch(name), "not read")
end

-- llmlua's JSON with 1.9 times the figures in the tier avx2.
local OURS = program(h.scratch "llmlua", [[case $* in
  --version) echo "llmlua 9.9"; exit ;;
  *--beams\ 4*) rows=4 ;;
  *) rows=1 ;;
  esac
  if [ "$LLMLUA_CPU" = avx2 ]; then tps=380; else tps=200; fi
  tps=$((tps * rows))
  echo '{"bandwidth":1e+10,"runs":[{"prefill_tps":600.5,"decode_tps":'$tps',"roof":0.5}]}']])

local function run(arguments)
  local out, err = h.scratch "peers.out", h.scratch "peers.err"
  local command = ("sh scripts/peers.sh %s >%s 2>%s </dev/null"):format(arguments, q(out), q(err))
  local _, _, code = os.execute(command)
  return h.read(out), h.read(err), code
end

-- Asserts the exit status and that every text was printed on standard output.
local function prints(status, arguments, ...)
  local out, err, code = run(arguments)
  assert.equal(status, code, err)
  for _, text in ipairs {...} do assert(out:find(text, 1, true), text .. " is not in " .. out) end
  return out, err
end

describe("peers.sh", function()
  local q4_1 = model "SmolLM2 with blanks.Q4_1.gguf"

  it("takes the best of all rounds, and places the fork by the list's quotient", function()
    local folder = build("rounds", [[
      n=$(wc -l <"${0%/bin/*}/arguments")
      echo '{"avg_ts": 990.0, "samples_ts": [ '$((110 - 10 * n))', 50.5 ]}']])
    prints(0, ("-p %s -r 2 -t 3 -w decode -l %s %s"):format(q(OURS), q(folder), q(q4_1)),
      "3 threads, best of 2 rounds", "llmlua 9.9", "7 of rounds", "Memory roof: 10.0 GB/s.",
      "| decode | SmolLM2 with blanks.Q4_1.gguf | 200 | 100 | 143 | 2.00 | 1.40 | 1.8, missed " ..
        "| 50 % |")
    assert.equal(("-m %s -t 3 -fa 1 -o jsonl -p 0 -n 64 -d 128 -r 2\n"):rep(2):format(q4_1, q4_1),
      h.read(folder .. "/arguments"))
  end)

  it("holds llmlua to the tier of a build, and places the fork by its own quotient", function()
    local folder = build("tiers", [[echo '{"samples_ts": [ 100.0 ]}']])
    local out = prints(0, ("-p %s -r 1 -w decode -l %s -l avx2=%s %s"):format(q(OURS), q(folder),
      q(folder), q(q4_1)), "| 200 | 100 | 143 |",
      "| 380 | 100 | 152 | 3.80 | 2.50 | 1.8, reached |")
    assert(out:find("Best tier against its build:.*Tier avx2 against its build:"))
  end)

  it("measures what has a goal by the name of the file", function()
    local folder = build("named", [[echo '{"samples_ts": [ 100.0 ]}']],
      [[echo '{"speed_tg": 80.0, "t": 990.0}'; echo '{"speed_tg": 90.5, "t": 990.0}']])
    local out = prints(0, ("-p %s -r 1 -l %s %s"):format(q(OURS), q(folder),
      q(model "SmolLM2.Q8_0.gguf")), "| decode |", "| prefill512 | SmolLM2.Q8_0.gguf | 600 | 100 |",
      "| rows4 | SmolLM2.Q8_0.gguf | 200 | 90.5 |", "| rows16 |")
    assert(not out:find("4096", 1, true))
    local _, err, code = run(("-p %s -l %s %s"):format(q(OURS), q(folder), q(model "x.gguf")))
    assert.equal(1, code)
    assert(err:find("no file has a goal in the list", 1, true), err)
  end)

  it("times a step of all beams against CTranslate2", function()
    local ct2 = h.scratch "ct2"
    assert(os.execute("mkdir -p " .. q(ct2)))
    h.write(ct2 .. "/model.bin", "not read")
    local python = program(h.scratch "python", [[case $1 in
      -c) echo 1.2.3 ;;
      *) echo '{"steps_per_s": 12.5}' ;;
      esac]])
    prints(0, ("-p %s -r 1 -w 'beams4 search4' -y %s -c %s -l %s %s"):format(q(OURS), q(python),
      q(ct2), q(build("beams", "exit 1")), q(q4_1)), "CTranslate2 1.2.3",
      "| beams4 | SmolLM2 with blanks.Q4_1.gguf | 5.00 ms | 80.00 ms | – | 16.00 | 16.00 " ..
        "| 12, reached |", "| search4 |")
  end)

  it("says when others had the cores", function()
    local folder = build("busy", [[
      for _ in $(seq "$(nproc)"); do
        timeout 2 sh -c 'while :; do :; done' >/dev/null 2>&1 &
      done
      sleep 1
      echo '{"samples_ts": [ 100.0 ]}']])
    -- What the peer leaves behind is waited for by nobody, so it is not the script's own.
    local arguments = ("-p %s -r 1 -w decode -l %s %s"):format(q(OURS), q(folder), q(q4_1))
    local out = prints(0, arguments, "THE MACHINE WAS BUSY")
    assert(tonumber(out:match "other processes had (%d+) %% of the cores") > 5)
  end)

  it("goes on without a figure, says why, and fails in the end", function()
    local folder = build("broken", "echo 'cannot load that' >&2; exit 1")
    local _, err = prints(1, ("-p %s -r 1 -w 'decode' -l %s %s"):format(q(OURS), q(folder),
      q(q4_1)), "| 200 | – | – | – | – | 1.8 |")
    local why = "no figure of llama.cpp for decode of " .. q4_1 .. ": cannot load that"
    assert(err:find(why, 1, true), err)
    assert(err:find("1 figures are missing", 1, true), err)
  end)

  it("prints what it has when it is ended", function()
    local folder = build("ended", [[
      if [ "$(wc -l <"${0%/bin/*}/arguments")" -gt 1 ]; then kill -TERM $PPID; exit; fi
      echo '{"samples_ts": [ 100.0 ]}']])
    prints(143, ("-p %s -r 9 -w decode -l %s %s"):format(q(OURS), q(folder), q(q4_1)),
      "| 200 | 100 | 143 |")
    assert.equal(2, select(2, h.read(folder .. "/arguments"):gsub("\n", "")))
  end)

  it("refuses a work, a number, a folder or a file that is none", function()
    local folder = build("refused", "exit 1")
    for _, case in ipairs {
      {("-w coffee -l %s %s"):format(q(folder), q(q4_1)), "unknown work 'coffee'"},
      {("-r 0 -l %s %s"):format(q(folder), q(q4_1)), "got '0'"},
      {("-w decode -l /nonexistent %s"):format(q(q4_1)), "/nonexistent/bin/llama-bench"},
      {("-l %s /nonexistent.gguf"):format(q(folder)), "cannot read /nonexistent.gguf"},
      {("-c /nonexistent -l %s %s"):format(q(folder), q(q4_1)), "/nonexistent holds no model.bin"},
    } do
      local out, err, code = run("-p " .. q(OURS) .. " " .. case[1])
      assert.equal(1, code)
      assert.equal("", out)
      assert(err:find(case[2], 1, true), err)
    end
    local _, err, code = run "-l"
    assert.equal(2, code)
    assert(err:find("-l [TIER=]BUILD", 1, true), err)
  end)

  it("reads what the program's own bench prints", function()
    local folder = build("real", [[echo '{"samples_ts": [ 0.001 ]}']],
      [[echo '{"speed_tg": 0.001}']])
    local arguments = "-p %s -r 1 -t 1 -w 'prefill128 rows4' -l %s models/builtin.gguf"
    local out = prints(0, arguments:format(q(h.program), q(folder)))
    local rows = 0
    for work, ours in out:gmatch "\n| (%w+) | builtin.gguf | ([%d.]+) | 0.0 |" do
      assert((work == "prefill128" or work == "rows4") and tonumber(ours) > 1, ours)
      rows = rows + 1
    end
    assert.equal(2, rows)
    assert(out:find "rows4 [^\n]* %d+ %% |")
  end)
end)
