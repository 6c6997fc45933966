-- Devices of plug-ins: how they are found and listed, and what becomes of all that can be wrong
-- with a GPU, on the emulated one. Where no C++ compiler built that, its specs are pending.
local h = require "spec.helper"
local llm = require "llm"

local folder = h.program:match "^(.*/)" or "./"
local emulated = h.exists(folder .. "libllmlua-cuda-emulated.so")
local version = folder .. "libother-plugin.so"

local function emulation(sentence, body)
  if emulated then return it(sentence, body) end
  pending(sentence .. " (no emulation was built)")
end

-- What the program says, of a run that must fail with that status.
local function failure(status, arguments, settings)
  local out, err, code = h.run(arguments, nil, settings)
  assert.equal(status, code, err)
  return err, out
end

describe("a plug-in", function()
  it("that is not there is named, with where it should be", function()
    local err = failure(1, "greedy -n 1 --device cuda --cuda-lib /none.so")
    h.says(err, "cannot load", "/none.so")
    local model, message = llm.load(nil, {device = "cuda", cuda_lib = "/none.so"})
    assert.is_nil(model)
    h.says(message, "cannot load", "/none.so")
  end)

  it("of another version is refused with both versions", function()
    local err = failure(1, "greedy -n 1 --device cuda --cuda-lib " .. h.quote(version))
    local theirs, their_bytes, ours, our_bytes = err:match(
      "another version: its interface is (%d+) with (%d+) bytes, this program's (%d+) with (%d+)")
    assert(theirs, err)
    assert.equal(1, theirs - ours)
    assert(their_bytes ~= our_bytes)
  end)

  it("that is some other library is refused", function()
    h.says(failure(1, "greedy -n 1 --device cuda --cuda-lib ''"), "names no file")
    h.says(failure(1, "greedy -n 1 --device cuda --cuda-lib " .. h.quote(os.getenv "LLMLUA_MODULE"
      or folder .. "llm.so")), "is no plug-in of llmlua")
  end)

  emulation("that holds another device is refused", function()
    h.says(failure(1, ("greedy -n 1 --device cuda --cuda-lib %slibllmlua-cuda-emulated.so")
      :format(folder)), "holds the device cuda-emulated, not cuda")
  end)

  it("that fails leaves auto with the CPU and one line that says why", function()
    local out, err, code = h.run("greedy -n 2 --cuda-lib /none.so", nil, "LLMLUA_DEVICE=")
    assert.equal(0, code)
    h.says(err, "computing on the CPU: cannot load")
    local plain, quiet = h.run("greedy -n 2 --quiet --cuda-lib /none.so", nil, "LLMLUA_DEVICE=")
    assert.same({out, ""}, {plain, quiet})
  end)
end)

describe("devices", function()
  it("are listed with their memory, or the reason why there is none", function()
    local out, err, code = h.run("--devices --cuda-lib /none.so")
    assert.same({0, ""}, {code, err})
    h.says(out, "cuda    cannot load", "\ncpu     ", " GiB, ", "\nref     ")
    local list = llm.devices {cuda_lib = "/none.so"}
    local names = {list[1].device, list[#list - 1].device, list[#list].device}
    assert.same({"cuda", "cpu", "ref"}, names)
    h.says(list[1].reason, "cannot load")
    assert(list[#list].memory >= list[#list].memory_free and list[#list].memory_free > 0)
    assert.is_nil(list[#list].compute)
    assert(not pcall(llm.devices, {cuda = "x"}))
  end)

  it("that are unknown are refused with the known ones", function()
    for _, name in ipairs {"abacus", "cpu:0", "cuda:", "cuda:x", "cuda:1000", "cuda:-1", ":1"} do
      h.says(failure(2, "greedy --device " .. name), "is not one of auto, cpu, ref, cuda, cuda:N")
      local ok, err = pcall(llm.load, nil, {device = name})
      local message = ok and select(2, llm.load(nil, {device = name})) or err.message
      h.says(message, "unknown device", "known are auto, cpu, ref, cuda, cuda:N")
    end
  end)

  emulation("of the emulation are listed one by one", function()
    local out = h.run("--devices", nil, "LLMLUA_EMULATION_DEVICES=2")
    h.says(out, "\ncuda-emulated:0  ", "\ncuda-emulated:1  ", "compute capability 8.0",
      "driver for CUDA 13.0")
    out = h.run("--devices", nil, "LLMLUA_EMULATION_DEVICES=0")
    h.says(out, "\ncuda-emulated  no GPU is visible")
  end)

  emulation("that cannot be opened say why", function()
    local run = "greedy -n 1 --device cuda-emulated"
    h.says(failure(1, run, "LLMLUA_EMULATION_DRIVER=0"), "no NVIDIA driver is installed")
    h.says(failure(1, run, "LLMLUA_EMULATION_DRIVER=11040"), "driver is too old", "CUDA 11.4",
      "needs 13.0")
    h.says(failure(1, run, "LLMLUA_EMULATION_DEVICES=0"), "no GPU is visible")
    h.says(failure(1, run, "LLMLUA_EMULATION_COMPUTE=61"), "compute capability 6.1")
    h.says(failure(1, run .. ":1"), "device index 1: there is one device, 0")
    h.says(failure(1, run .. ":2", "LLMLUA_EMULATION_DEVICES=2"),
      "device index 2: there are 2 devices, 0 … 1")
  end)
end)

describe("the emulated GPU", function()
  emulation("runs the second of two devices as the first", function()
    local first = h.run("greedy -n 3 --device cuda-emulated:0", nil, "LLMLUA_EMULATION_DEVICES=2")
    local second = h.run("greedy -n 3 --device cuda-emulated:1", nil, "LLMLUA_EMULATION_DEVICES=2")
    assert(#first > 0)
    assert.equal(first, second)
  end)

  emulation("refuses a model that does not fit, with both numbers", function()
    local err = failure(1, "greedy -n 1 --device cuda-emulated", "LLMLUA_EMULATION_MEMORY=8000000")
    local asked, free = err:match "out of memory: (%d+) bytes asked of the GPU, (%d+) of 8000000"
    assert(asked and tonumber(asked) > tonumber(free), err)
  end)

  emulation("says once that cuBLASLt is not there", function()
    local _, err, code = h.run("greedy -n 1 --device cuda-emulated", nil,
      "LLMLUA_EMULATION_BLAS=off")
    assert.equal(0, code)
    local _, n = err:gsub("cuBLASLt was not found", "")
    assert.equal(1, n)
  end)

  emulation("out of memory in the middle raises out_of_memory and goes on", function()
    local script = h.write(h.scratch "memory.lua", [[
      local model = assert(llm.load(nil, {device = "cuda-emulated"}))
      local kv = model:cache()
      local ids = model:encode("In the beginning")
      local before = model:forward(kv, ids):tolist()
      local logits = model:forward(model:cache(), ids)
      local kept, ones = {}, {}
      for i = 1, 500 do ones[i] = 1 end
      local ok, err = pcall(function()
        while true do kept[#kept + 1] = logits:rows(ones) end
      end)
      print(ok, err.kind, err.message)
      kept = nil
      collectgarbage()
      kv:truncate(0)
      local after = model:forward(kv, ids):tolist()
      for i = 1, #before do assert(before[i] == after[i]) end
      print("the same")
    ]])
    local out, err, code = h.run(h.quote(script), nil, "LLMLUA_EMULATION_MEMORY=40000000")
    assert.equal(0, code, err)
    h.says(out, "false\tout_of_memory\t", "out of memory", "the same")
  end)

  emulation("ends with one line after a kernel's fault, and keeps the results so far", function()
    local prompts, lines = {}, h.scratch "faulty.jsonl"
    for i = 1, 12 do prompts[i] = ('{"prompt": "In the beginning %d"}\n'):format(i) end
    local file = h.write(h.scratch "prompts.jsonl", table.concat(prompts))
    local run = ("greedy -n 4 --jobs 2 --quiet --device %%s --prompts %s --out %s --overwrite")
      :format(file, lines)
    local _, err, code = h.run(run:format "cuda-emulated")
    assert.equal(0, code, err)
    local whole = {}
    for line in io.lines(lines) do whole[#whole + 1] = line:gsub('"timings".*', "") end
    local function n_whole() -- lines, each as it should be
      local n = 0
      for line in io.lines(lines) do
        local index = tonumber(line:match '"index": ?(%d+)')
        assert.equal(whole[index], (line:gsub('"timings".*', "")))
        n = n + 1
      end
      return n
    end
    _, err, code = h.run(run:format "cuda-emulated", nil, "LLMLUA_EMULATION_FAULT=400")
    assert.equal(1, code, err)
    h.says(err, "illegal", "of 12 done; the same command continues")
    assert(n_whole() > 0 and n_whole() < 12, err)
    _, err, code = h.run((run:format "cuda-emulated":gsub(" %-%-overwrite", "")))
    assert.equal(0, code, err)
    assert.equal(12, n_whole())
  end)
end)
