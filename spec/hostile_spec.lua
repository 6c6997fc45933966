-- Model files that are wrong, through the program: one line, exit 1, no signal.
local h = require "spec.helper"

local function refused(path, pattern)
  local out, err, code = h.run("greedy -n 1 -p x -m " .. h.quote(path))
  assert.equal(1, code, err)
  assert.equal("", out)
  assert.truthy(err:find "^llmlua: [^\n]+\n$", err)
  if pattern then assert.truthy(err:find(pattern), err) end
end

local good = h.read(h.data .. "models/llama-q8_0.gguf")

local function file(bytes) return h.write(h.scratch("hostile.gguf"), bytes) end

describe("a model file", function()
  it("that is absent, empty, a folder or something else is refused", function()
    refused(h.scratch "absent.gguf", "absent.gguf")
    refused(file "")
    refused("spec")
    refused(file(("a text that is no model\n"):rep(100)))
    refused(file("PK\3\4" .. ("\0"):rep(200)))
    refused("/dev/null")
  end)

  it("cut anywhere is refused", function()
    for _, n in ipairs {1, 3, 4, 8, 23, 24, 31, 100, 1000, 5000, #good // 2, #good - 1} do
      refused(file(good:sub(1, n)))
    end
  end)

  it("of another version or byte order is refused", function()
    for _, version in ipairs {"\0\0\0\0", "\1\0\0\0", "\4\0\0\0", "\0\0\0\3"} do
      refused(file("GGUF" .. version .. good:sub(9)))
    end
  end)

  it("with absurd counts is refused without a large allocation", function()
    local huge = ("\255"):rep(7) .. "\127"
    refused(file(good:sub(1, 8) .. huge .. good:sub(17)))
    refused(file(good:sub(1, 16) .. huge .. good:sub(25)))
    refused(file(good:sub(1, 24) .. huge .. good:sub(33)))
  end)

  it("of an unknown architecture is refused by name with the known ones", function()
    local changed = good:gsub("general%.architecture\8%z%z%z\5%z%z%z%z%z%z%zllama", function(s)
      return (s:gsub("llama$", "lemma"))
    end)
    assert.are_not.equal(good, changed)
    refused(file(changed), '"lemma" is unknown: known are llama, qwen2, qwen3, gemma3, gpt2')
  end)

  it("with NaN in a norm is refused by the tensor's name", function()
    -- norms are the only F32 tensors, all near 1
    local model = assert(h.load(file(good), {device = "ref"}))
    model:close()
    local patched
    for at = #good - 64 * 4 + 1, 1, -32 do
      local value = string.unpack("<f", good, at)
      if value > 0.2 and value < 5 then
        local candidate = good:sub(1, at - 1) .. string.pack("<f", 0 / 0) .. good:sub(at + 4)
        local loaded, message = h.load(file(candidate), {device = "ref"})
        if not loaded then
          patched = message
          break
        end
        loaded:close()
      end
    end
    assert.truthy(patched and patched:find "norm", tostring(patched))
  end)

  it("with NaN in a matrix raises nan and names the step", function()
    local n = 0
    for at = #good - 34 * 40, #good - 34 * 20, 2 do -- scales of the last tensor's blocks, somewhere
      local bytes = good:sub(1, at - 1) .. "\0\126" .. good:sub(at + 2)
      local _, err, code = h.run("greedy -n 2 -p 'In the' --quiet -m " .. h.quote(file(bytes)))
      assert(code == 0 or code == 1, err)
      if code == 1 then
        n = n + 1
        assert.truthy(err:find("nan", 1, true) or err:find("NaN", 1, true), err)
      end
      if n > 2 then break end
    end
  end)
end)
