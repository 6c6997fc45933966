-- Who may use whom (see README, "The source"): read from the includes and requires.
local h = require "spec.helper"

local KERNELS = "kernels/*.[chi]* kernels/*/*.[chi]* kernels/*/*/*.[chi]* kernels/*/*/*/*.[chi]*"

local function files(pattern)
  local list = {}
  local pipe = assert(io.popen("ls -dp " .. pattern .. " 2>/dev/null | grep -v /$"))
  for path in pipe:lines() do list[#list + 1] = path end
  pipe:close()
  return list
end

local function set(list)
  local s = {}
  for _, name in ipairs(list) do s[name] = true end
  return s
end

-- Calls check(file, included, is_system) for each #include.
local function each_include(pattern, check)
  local n = 0
  for _, path in ipairs(files(pattern)) do
    for line in io.lines(path) do
      local quoted = line:match '^%s*#%s*include%s*"([^"]+)"'
      local system = line:match "^%s*#%s*include%s*<([^>]+)>"
      if quoted or system then
        n = n + 1
        check(path, quoted or system, system ~= nil)
      end
    end
  end
  assert(n > 0, pattern)
end

local third_party = set {"pcre2.h", "utf8proc.h", "xxhash.h", "lua.h", "lauxlib.h", "lualib.h"}

local function refuse(path, name) error(path .. " may not include " .. name, 0) end

describe("the source", function()
  it("kernels use libc and each other only", function()
    each_include(KERNELS, function(path, name, is_system)
      if is_system and third_party[name] then refuse(path, name) end
      local above = name:find("core/", 1, true) or name:find("lua/", 1, true)
      if not is_system and above then refuse(path, name) end
    end)
  end)

  it("core uses kernels, core, libc, pcre2, utf8proc and xxhash", function()
    each_include("core/*.[ch]", function(path, name, is_system)
      if is_system and third_party[name] and name:find "^l" then refuse(path, name) end
      if not is_system and name:find("lua/", 1, true) then refuse(path, name) end
    end)
  end)

  it("core never prints or exits", function()
    for _, path in ipairs(files "core/*.c") do
      local text = h.read(path)
      for _, name in ipairs {"printf", "puts", "exit", "abort"} do
        assert(not text:find("%f[%w_]" .. name .. "%s*%("), path .. " calls " .. name)
      end
    end
  end)

  it("the binding uses core/llm.h, libc and Lua", function()
    each_include("lua/*.[ch]", function(path, name, is_system)
      if is_system and third_party[name] and not name:find "^l" then refuse(path, name) end
      if name:find("kernels/", 1, true) then refuse(path, name) end
      if name:find("core/", 1, true) and not name:find "core/llm%.h$" then refuse(path, name) end
    end)
  end)

  local function each_require(pattern, check)
    for _, path in ipairs(files(pattern)) do
      for line in io.lines(path) do
        for name in line:gmatch "require%s*%(?%s*[\"']([%w_%.]+)[\"']" do check(path, name) end
      end
    end
  end

  it("lua/llm uses llm, llm.*, JSON and argparse", function()
    each_require("lua/llm/*.lua", function(path, name)
      local known = name == "llm" or name == "dkjson" or name == "argparse"
      known = known or name:find "^llm%." or name:find "^samplers%."
      assert(known, path .. " may not require " .. name)
    end)
  end)

  it("scripts and samplers use llm, llm.* and samplers.*", function()
    each_require("scripts/*.lua samplers/*.lua", function(path, name)
      local known = name == "llm" or name:find "^llm%." or name:find "^samplers%."
      assert(known, path .. " may not require " .. name)
    end)
  end)

  it("holds no file of more than 600 lines", function()
    for _, path in ipairs(files(KERNELS .. " core/*.[ch] lua/*.[ch] lua/llm/*.lua scripts/* "
      .. "samplers/*.lua spec/*.lua spec/c/* spec/c/*/*")) do
      local n = 0
      for _ in io.lines(path) do n = n + 1 end
      assert(n <= 600 or path == "lua/llm/meta.lua", path .. " has " .. n .. " lines")
    end
  end)

  it("names no absolute path of a machine", function()
    local pipe = assert(io.popen("grep -rlE '/(root|home/[a-z]+|work)/' --exclude-dir=.git "
      .. "--exclude-dir='build*' --exclude=layout_spec.lua ."))
    local found = pipe:read "a"
    pipe:close()
    assert.equal("", found)
  end)
end)
