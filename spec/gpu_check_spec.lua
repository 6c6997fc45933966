-- scripts/gpu-check.sh run with a program that plays a GPU, and the tools that it uses.
local h = require "spec.helper"
local json = require "dkjson"

local here = io.popen "pwd":read "l"
local program = h.program:sub(1, 1) == "/" and h.program or here .. "/" .. h.program

-- A carried folder whose program is a shell script: `cases` by its first argument.
local function folder(name, cases)
  local path = h.scratch(name)
  local make = "mkdir -p %s/bin && ln -sfn %s/scripts %s/spec %s"
  os.execute(make:format(path, here, here, path))
  h.write(path .. "/bin/llmlua", ([[#!/bin/sh
case $1 in
scripts/gpu_summary.lua) exec %s "$@" ;;
%s
esac
]]):format(program, cases))
  os.execute(("chmod +x %s/bin/llmlua"):format(path))
  return path
end

local function run(path, settings)
  local command = "env %s sh scripts/gpu-check.sh run %s %s/out >%s/log 2>&1"
  local _, _, code = os.execute(command:format(settings, path, path, path))
  local parts = {}
  for line in io.lines(path .. "/out/parts.jsonl") do
    local p = json.decode(line)
    parts[p.part] = p
  end
  return code, parts, h.read(path .. "/out/summary.txt")
end

local BENCH = '{"model":"t-shape:llama-%s-bf16","device":"d","bandwidth":4e12,"peak":8e14,"runs":['
  .. '{"kind":"batch","rows":1,"step_ms":4.0,"decode_tps":250,"roof":%s,"prefill_tps":9000,'
  .. '"prefill_peak":0.5},{"kind":"batch","rows":16,"step_ms":5.0,"decode_tps":3200,"roof":0.7}]}'

describe("gpu-check.sh", function()
  it("goes on after a part that fails, and ends with 1", function()
    local path = folder("failing", "greedy) echo no such device; exit 7 ;;")
    local code, parts, summary = run(path, "LIMIT=300")
    assert.equal(1, code)
    assert.same({"failed", 7}, {parts["first-words"].status, parts["first-words"].code})
    assert.equal("passed", parts.devices.status)
    assert.equal("passed", parts["spec-tensor"].status)
    assert(summary:find("exit status 7", 1, true) and summary:find("1 failed", 1, true), summary)
    assert.equal("no such device\n", h.read(path .. "/out/first-words.txt"))
  end)

  it("cuts a part that hangs, and skips what there is no time for", function()
    local path = folder("hanging", "--devices) exec sleep 100 ;;")
    local code, parts = run(path, "LIMIT=6")
    assert.equal(1, code)
    assert.same({"failed", 124}, {parts.devices.status, parts.devices.code})
    assert.equal("skipped", parts["spec-tensor"].status)
  end)

  it("holds figures against what they should be", function()
    local cases = "bench) case $3 in *8b*) echo '%s' ;; *1b*) echo '%s' ;; esac ;;"
    local path = folder("measuring", cases:format(BENCH:format("8b", "0.8"),
      BENCH:format("1b", "0.5")))
    local code, _, summary = run(path, "LIMIT=300")
    assert.equal(0, code, summary)
    for _, line in ipairs {"llama-8b-bf16: roof at 1 row at least 0.75: 0.80, reached",
      "llama-1b-bf16: roof at 1 row at least 0.60: 0.50, SHORT OF IT",
      "llama-8b-bf16: prefill_peak at least 0.70: 0.50, SHORT OF IT",
      "time of 16 rows over that of 1 at most 1.30: 1.25, reached"} do
      assert(summary:find(line, 1, true), summary)
    end
  end)

  it("ends at once, and says why, where the device is not there", function()
    local path = folder("absent", "--devices) echo 'cuda    no NVIDIA driver is installed' ;;")
    local code, parts, summary = run(path, "LIMIT=300")
    assert.equal(1, code)
    assert.same({"passed", nil}, {parts.devices.status, parts["first-words"]})
    local line = "gpu-check: nothing to check: cuda    no NVIDIA driver is installed\n"
    assert.equal(line, summary)
    assert(h.read(path .. "/log"):find(line, 1, true))
  end)

  it("runs each test of kernels by itself, and tells of texts", function()
    local path = folder("testing", [[*same_texts.lua)
  echo '{"model":"a","device":"d","tokens":9,"differ":1,"worst":0.25,"margin":0.01,"ok":true}' ;;]])
    h.write(path .. "/bin/kernel_tests", [[#!/bin/sh
case $1 in '') echo rows; echo attend ;; rows) echo 5 passed ;; *) exit 3 ;; esac
]])
    os.execute(("chmod +x %s/bin/kernel_tests"):format(path))
    local code, parts, summary = run(path, "LIMIT=300")
    assert.equal(1, code)
    assert.same({"passed", "failed", 3}, {parts["kernels-rows"].status,
      parts["kernels-attend"].status, parts["kernels-attend"].code})
    assert.equal("5 passed\n", h.read(path .. "/out/kernels-rows.txt"))
    assert(summary:find("texts of 1 models: 9 tokens, 1 chosen otherwise than by ref, "
      .. "logits differ by 0.2500", 1, true), summary)
  end)

  it("tries itself on the emulation, all parts that need no GPU's tools", function()
    local beside = program:match "^(.*)/[^/]+$" .. "/libllmlua-cuda-emulated.so"
    if not h.exists(beside) then return pending "needs the emulated plug-in" end
    local path = folder("emulated", "*) exec " .. program .. [[ "$@" ;;]])
    local code, parts, summary = run(path, "-i PATH=/usr/bin:/bin DEVICE=cuda-emulated SLOW=8")
    assert.equal(0, code, summary)
    for _, part in ipairs {"devices", "first-words", "texts-as-ref", "bench-tiny", "spec-rng"} do
      assert.equal("passed", parts[part].status, part)
    end
    local bench = json.decode(h.read(path .. "/out/bench.jsonl"))
    for _, r in ipairs(bench.runs) do
      for _, name in ipairs {"roof", "prefill_peak", "launches", "syncs"} do
        assert(r[name] > 0, name)
      end
    end
    assert.same({1, 4}, {bench.runs[1].rows, bench.runs[2].rows})
  end)

  it("says how it is used", function()
    local _, _, code = os.execute("sh scripts/gpu-check.sh run 2>" .. h.scratch "usage")
    assert.equal(2, code)
    assert(h.read(h.scratch "usage"):find("gpu-check.sh prepare FOLDER", 1, true))
  end)
end)

describe("same_texts", function()
  it("finds the cpu's texts those of ref, and says where they are not", function()
    local models = "builtin spec/data/models/llama-f32.gguf spec/data/models/llama256-q4_k.gguf"
    local out, err, code = h.run("same_texts --device cpu --threads 1 --tokens 6 " .. models)
    assert.equal(0, code, err .. out)
    local _, n = out:gsub("same  ", "")
    assert.equal(3, n)
    out, err, code = h.run("same_texts --device cpu --tokens 6 --worst 0 --json " .. models)
    assert.equal(1, code, err .. out)
    assert(out:find('"ok":false', 1, true), out)
  end)
end)
