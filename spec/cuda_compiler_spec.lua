-- What nvcc made of the kernels of a decode step, against the table of spec/cuda_kernels.lua: from
-- what ptxas said as the plug-in was built (build/cuda/*.ptxas), and from its instructions, which
-- cuobjdump tells (on the path, beside nvcc, or LLMLUA_CUOBJDUMP), or else nvcc's PTX, which is
-- made here once for each change of the sources. Pending where the plug-in was not built.
local h = require "spec.helper"
local rows = require "spec.cuda_kernels"

local folder = (h.program:match "^(.*/)" or "./") .. "cuda/"
local REGISTERS = 65536 -- of a multiprocessor; a thread gets them in eights
local SHARED = {[75] = 64, [80] = 164, [86] = 100, [89] = 100, [90] = 228, [100] = 228,
  [120] = 100} -- KB of a multiprocessor; a block takes 1 KB more than it asks for

local function output(command)
  local pipe = assert(io.popen(command .. " 2>/dev/null"))
  local text = pipe:read "a"
  return text, pipe:close()
end

-- "_Z11product_fewILi30ELi1ELi2EEv12product_args" as product_few and what follows the name.
local function name_of(mangled)
  local n, rest = mangled:match "^_ZN?L?(%d+)(.*)$"
  if n then return rest:sub(1, tonumber(n)), rest:sub(tonumber(n) + 1) end
end

local function row_of(mangled)
  local name, rest = name_of(mangled)
  for _, row in ipairs(rows) do
    if row.kernel == name and rest:find(row.template) then return row end
  end
end

local function sources(row)
  return row.source:gmatch "%S+"
end

-- ---- what ptxas said ----

-- Calls each with {kernel, compute, registers, shared, stack, spilled} of a build's log.
local function read_log(text, each)
  local kernel
  for line in text:gmatch "[^\n]+" do
    local name, compute = line:match "Compiling entry function '([^']+)' for 'sm_(%d+)a?'"
    if name then kernel = {kernel = name, compute = tonumber(compute)} end
    local stack, stores, loads = line:match
      "(%d+) bytes stack frame, (%d+) bytes spill stores, (%d+) bytes spill loads"
    if stack and kernel then
      kernel.stack, kernel.spilled = tonumber(stack), tonumber(stores) + tonumber(loads)
    end
    local registers = line:match "Used (%d+) registers"
    if registers and kernel then
      kernel.registers = tonumber(registers)
      kernel.shared = tonumber(line:match "(%d+) bytes smem" or "0")
      each(kernel)
      kernel = nil
    end
  end
end

-- What is wrong with a kernel of the log, as a line, or nil.
local function fault(k, row)
  local function say(format, ...) return ("%s for sm_%d: "):format(k.kernel, k.compute)
    .. format:format(...) end
  if k.stack > (row.stack or 0) then return say("%d bytes of local memory", k.stack) end
  if k.spilled > (row.spilled or 0) then return say("%d bytes spilled", k.spilled) end
  if k.registers > row.registers then
    return say("%d registers, at most %d are meant", k.registers, row.registers)
  end
  if k.shared > row.shared then
    return say("%d bytes of shared memory, at most %d are meant", k.shared, row.shared)
  end
end

-- ---- instructions ----

-- Loads of 16 bytes from global memory, or through a pointer that the compiler does not know to
-- point there.
local SASS = {entry = "^%s*Function : (%S+)", mma = "[HI]MMA",
  loads = {"LDG%w*%.E[%w.]*%.128", "%f[%w]LD%.E[%w.]*%.128"}}
local PTX = {entry = "%.entry ([%w_$]+)", mma = "mma%.sync",
  loads = {"ld%.global[%w.:_]*%.v4", "ld%.v4"}}

-- Calls each with a kernel's mangled name, and whether it has tensor-core instructions and reads
-- 16 bytes at a time.
local function read_code(text, language, each)
  local name, mma, load
  local function finish() if name then each(name, mma, load) end end
  for line in text:gmatch "[^\n]+" do
    local entry = line:match(language.entry)
    if entry then
      finish()
      name, mma, load = entry, false, false
    end
    mma = mma or line:find(language.mma) ~= nil
    for _, pattern in ipairs(language.loads) do load = load or line:find(pattern) ~= nil end
  end
  finish()
end

local nvcc = output "command -v nvcc || ls /usr/local/cuda/bin/nvcc":match "^[^\n]+"

local function find_cuobjdump()
  local named = os.getenv "LLMLUA_CUOBJDUMP"
  if named and named ~= "" then return named end
  local found = output "command -v cuobjdump":match "^[^\n]+"
  if found then return found end
  local beside = nvcc and nvcc:gsub("nvcc$", "cuobjdump")
  return beside and h.exists(beside) and beside or nil
end

-- Anything of the kernels that is newer than the file.
local function is_old(path)
  if not h.exists(path) then return true end
  local file = h.quote(path)
  return output(("find kernels -newer %s -name '*.cu' -o -newer %s -name '*.h'"):format(file, file))
    ~= ""
end

local function make_ptx(source)
  local path = folder .. source .. ".ptx"
  if is_old(path) then
    local _, ok = output(("nice %s -ptx -O3 -std=c++17 -arch=compute_80 kernels/cuda/%s.cu -o %s")
      :format(nvcc, source, h.quote(path)))
    assert(ok, "nvcc makes no PTX of " .. source)
  end
  return h.read(path)
end

local codes = {}
-- The instructions of an object of the build for one kind of GPU, and their language.
local function code_of(source, cuobjdump, compute)
  if not codes[source] then
    codes[source] = cuobjdump and output(("%s -sass -arch sm_%d %s"):format(cuobjdump, compute,
      h.quote(folder .. source .. ".o"))) or make_ptx(source)
  end
  return codes[source], cuobjdump and SASS or PTX
end

describe("the checks of the compiler's output", function()
  local text = [[
ptxas info    : Compiling entry function '_Z11product_fewILi30ELi1ELi2EEv12product_args' for 'sm_90'
ptxas info    : Function properties for _Z11product_fewILi30ELi1ELi2EEv12product_args
    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads
ptxas info    : Used %d registers, used 1 barriers, %d bytes smem
]]
  local function faults(...)
    local found = {}
    read_log(text:format(...), function(k) found[#found + 1] = fault(k, row_of(k.kernel)) end)
    return found[1] and found[1]:match ": (.*)" or ""
  end

  it("find local memory, spills, and too many registers or bytes", function()
    assert.equal("", faults(0, 0, 0, 126, 9216))
    assert.equal("8 bytes of local memory", faults(8, 0, 0, 126, 9216))
    assert.equal("12 bytes spilled", faults(0, 4, 8, 126, 9216))
    assert.equal("130 registers, at most 128 are meant", faults(0, 0, 0, 130, 9216))
    assert.equal("20000 bytes of shared memory, at most 9728 are meant", faults(0, 0, 0, 90, 20000))
  end)

  it("find instructions of both kinds, kernel by kernel", function()
    local function read(code, language)
      local list = {}
      read_code(code, language, function(...) list[#list + 1] = {...} end)
      return list
    end
    assert.same({{"_Z1a", true, false}, {"_Z1b", false, true}}, read([[
  Function : _Z1a
        /*0100*/  HMMA.16816.F32.BF16 R4, R4, R8, RZ ;
        /*0110*/  LDG.E.64 R4, desc[UR4][R2.64] ;
  Function : _Z1b
        /*0100*/  LDG.E.NA.128.CONSTANT R4, desc[UR4][R2.64] ;]], SASS))
    assert.same({{"_Z1a", true, false}, {"_Z1b", false, true}}, read([[
.visible .entry _Z1a(
 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1}, {%r1}, {%r2}, {%f1};
.visible .entry _Z1b(
 ld.global.nc.L1::no_allocate.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];]], PTX))
  end)
end)

describe("the kernels of a decode step", function()
  local logs = output(("ls %s*.o.ptxas"):format(folder))
  if logs == "" then
    pending("need the plug-in for GPUs, which was not built here: there is no " .. folder)
    return
  end
  local seen, faults, architectures, spared = {}, {}, {}, {}
  for path in logs:gmatch "[^\n]+" do
    read_log(h.read(path), function(k)
      local row = row_of(k.kernel)
      architectures[k.compute] = true
      if not row then return end
      seen[row] = true
      faults[#faults + 1] = fault(k, row)
      spared[row] = math.max(spared[row] or 0, k.shared)
    end)
  end

  it("are all in the build", function()
    for _, row in ipairs(rows) do
      assert(seen[row], row.kernel .. row.template .. " is in no log of ptxas")
    end
  end)

  it("use no local memory, spill nothing and keep to their registers and shared memory", function()
    assert.equal("", table.concat(faults, "\n"))
  end)

  it("fit a multiprocessor as often as is meant", function()
    for _, row in ipairs(rows) do
      local each = (row.registers + 7) // 8 * 8
      assert(each * row.threads * row.blocks <= REGISTERS, row.kernel .. ": too many registers")
      for compute in pairs(architectures) do
        local kb = assert(SHARED[compute], "shared memory of sm_" .. compute)
        assert(((spared[row] or 0) + 1024) * row.blocks <= kb * 1024, row.kernel .. ": shared")
      end
    end
  end)

  local cuobjdump = find_cuobjdump()
  if not cuobjdump and not nvcc then
    pending("use tensor cores and read 16 bytes at a time (neither cuobjdump nor nvcc is here)")
    return
  end
  it("use tensor cores and read 16 bytes at a time where that is meant, in "
    .. (cuobjdump and "SASS" or "PTX"), function()
    local newest = 0
    for compute in pairs(architectures) do newest = math.max(newest, compute) end
    for _, row in ipairs(rows) do
      local n = 0
      for source in sources(row) do
        local code, language = code_of(source, cuobjdump, newest)
        read_code(code, language, function(name, mma, load)
          if row_of(name) ~= row then return end
          n = n + 1
          assert(mma == row.mma, ("%s %s tensor-core instructions"):format(name, mma and "has"
            or "has no"))
          assert(load or not row.loads, name .. " has no loads of 16 bytes")
        end)
      end
      assert(n > 0, row.kernel .. row.template .. " is in none of " .. row.source)
    end
  end)
end)
