-- llm.so in a stock lua5.4.
local h = require "spec.helper"

local module = os.getenv "LLMLUA_MODULE" or "build/llm.so"

-- Runs code in lua5.4; returns what it printed and its exit code. LLMLUA_PRELOAD: a sanitizer.
local function stock(code)
  local path = h.write(h.scratch("stock.lua"), code)
  local out = h.scratch("stock.out")
  local folder = module:match "^(.*)/[^/]*$"
  local command = "LUA_CPATH='%s/?.so' LD_PRELOAD='%s' lua5.4 '%s' >'%s' 2>&1"
  command = command:format(folder, os.getenv "LLMLUA_PRELOAD" or "", path, out)
  local _, _, status = os.execute(command)
  return h.read(out), status
end

describe("llm.so", function()
  local found = os.execute "command -v lua5.4 >/dev/null" and h.exists(module)
  local with = found and it or function(sentence)
    pending(sentence .. " (no lua5.4 or no llm.so)")
  end

  with("gives a stock lua5.4 what the program gives", function()
    local model <close> = h.tiny("llama-q8_0", {device = "cpu"})
    local expected = table.concat(h.greedy(model, {8, 195, 107}, 12), " ")
    local out, status = stock([[
      local llm = require "llm"
      local opts = {device = "cpu", threads = 1}
      local model <close> = assert(llm.load("spec/data/models/llama-q8_0.gguf", opts))
      local kv <close> = model:cache()
      local logits, ids = model:forward(kv, {8, 195, 107}), {}
      for i = 1, 12 do
        ids[i] = logits:argmax():item()
        logits = model:forward(kv, ids[i])
      end
      io.write(table.concat(ids, " "))
    ]])
    assert.equal(expected, out)
    assert.equal(0, status)
  end)

  with("raises errors that print and join as text", function()
    local out = stock([[
      local llm = require "llm"
      local ok, err = pcall(llm.load, "x", {devise = "cpu"})
      print(ok, err.kind, "so: " .. err)
      print(llm.load "absent.gguf")
    ]])
    assert.truthy(out:find "^false\tmisuse\tso: ")
    assert.truthy(out:find "devise")
    assert.truthy(out:find "\nnil\t[^\n]*absent.gguf")
  end)
end)
