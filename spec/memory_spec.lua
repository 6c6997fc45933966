-- A GPU whose memory ends in the middle of the work: the emulated one with little of it. Caches,
-- which take it at first use, and tensors raise out_of_memory with what was asked and what is free,
-- and what was there before stays as it was; jobs give way to each other.
local h = require "spec.helper"
local json = require "dkjson"

local folder = h.program:match "^(.*/)" or "./"
if not h.exists(folder .. "libllmlua-cuda-emulated.so") then
  describe("a GPU with little memory", function() pending "needs the emulated plug-in" end)
  return
end

local OPTIONS = '{device = "cuda-emulated", invariant = true, ctx = 256, kv = "f32", eog = {}}'

-- Holds the built-in model and some 20 pages of f32, with what a pass needs.
local MEMORY = "LLMLUA_EMULATION_MEMORY=22700000"

local function run(arguments, status, settings)
  local out, err, code = h.run(arguments, nil, settings or MEMORY)
  assert.equal(status or 0, code, err .. out)
  return out
end

describe("a GPU with little memory", function()
  it("raises out_of_memory as a cache grows, or tensors, and goes on as before", function()
    local script = h.write(h.scratch "grow.lua", ([[
      local model = assert(llm.load(nil, %s))
      local kv, long = model:cache(), {}
      for i = 1, 100 do long[i] = i * 37 %% 500 + 3 end
      model:forward(kv, {5, 6, 7})
      local before = model:forward(kv:fork(), 8):tolist()
      local logits = model:forward(kv:fork(), 8)
      local function ends(grow, message)
        local kept = {}
        local ok, err = pcall(function()
          while true do kept[#kept + 1] = grow() end
        end)
        assert(not ok and err.kind == "out_of_memory", tostring(err))
        assert(err.message:find(message), err.message)
        assert(#kept > 0 and #kv == 3)
        kept = nil
        collectgarbage()
        local after = model:forward(kv:fork(), 8):tolist()
        for i = 1, #before do assert(before[i] == after[i]) end
        collectgarbage()
      end
      ends(function()
        local other = model:cache()
        model:forward(other, long)
        return other
      end, "out of memory: %%d+ bytes asked of the GPU, %%d+ of %%d+ are free")
      ends(function() return logits * 2 end,
        "out of memory: %%d+ bytes for a tensor of 1 × 2048, %%d+ bytes of tensors are live")
      print "as before"]]):format(OPTIONS))
    assert.equal("as before\n", run(h.quote(script)))
  end)

  -- Greedy, but for a prompt that is long: that one takes caches without end.
  local STRATEGY = [[
    return {decode = function(model, prompt, opt, emit)
      local kvs = {}
      while #prompt > 60 do
        prompt[1], kvs[#kvs + 1] = #kvs + 3, model:cache()
        model:forward(kvs[#kvs], prompt)
      end
      kvs[1] = model:cache()
      local logits = model:forward(kvs[1], prompt)
      while true do
        local id = logits:argmax()
        if emit(id) then return end
        logits = model:forward(kvs[1], id)
      end
    end}]]

  it("sets jobs aside, and fails the one alone that cannot have enough", function()
    local lines = {}
    for i = 1, 4 do
      local ids = {}
      for j = 1, i == 1 and 90 or 50 do ids[j] = (i * 71 + j * 37) % 500 + 3 end
      lines[i] = json.encode {prompt = ids, max_tokens = 12}
    end
    local script = h.write(h.scratch "greedy_or_not.lua", STRATEGY)
    local prompts = h.write(h.scratch "prompts.jsonl", table.concat(lines, "\n"))
    local arguments = ("%s --quiet --jobs 6 --invariant --ignore-eog --ctx 256 --kv f32 --device "
      .. "cuda-emulated --swap-pages 0 --prompts %s"):format(h.quote(script), h.quote(prompts))
    local function results(settings, pages)
      local list, recomputed = {}, 0
      for line in run(arguments .. pages, 3, settings):gmatch "[^\n]+" do
        local result = json.decode(line)
        list[result.index] = result
        recomputed = recomputed + (result.error and 0 or result.timings.recomputed_tokens)
        result.timings = nil
      end
      return list, recomputed
    end
    local wide = results("", " --pages 20")
    local narrow, recomputed = results(MEMORY, "")
    assert.equal("cache_full", wide[1].error.kind)
    assert.equal("out_of_memory", narrow[1].error.kind)
    assert(narrow[1].error.message:find "%d+ bytes asked of the GPU, %d+ of %d+ are free")
    assert(recomputed > 0, "none was set aside")
    wide[1], narrow[1] = nil, nil
    assert.same(wide, narrow)
  end)

  -- Each asks for logits of all 60 ids of its prompt.
  local ROWS = [[
    return {decode = function(model, prompt, opt, emit)
      while #prompt < 60 do prompt[#prompt + 1] = #prompt + 3 end
      local kv = model:cache()
      local logits = model:forward(kv, prompt, {rows = "all"})
      while true do
        local id = logits:row(logits.n_rows):argmax()
        if emit(id) then return end
        logits = model:forward(kv, id)
      end
    end}]]

  it("lets jobs wait for each other where what all ask for does not fit", function()
    local lines = {}
    for i = 1, 5 do lines[i] = json.encode {prompt = {5, 6, i}, max_tokens = 2} end
    local script = h.write(h.scratch "rows.lua", ROWS)
    local prompts = h.write(h.scratch "prompts.jsonl", table.concat(lines, "\n"))
    local n = 0
    for line in run(("%s --quiet --jobs 5 --invariant --ignore-eog --ctx 256 --kv f32 --device "
      .. "cuda-emulated --prompts %s"):format(h.quote(script), h.quote(prompts)), 0,
      "LLMLUA_EMULATION_MEMORY=22000000"):gmatch "[^\n]+" do
      assert.equal(2, #json.decode(line).ids)
      n = n + 1
    end
    assert.equal(5, n)
  end)
end)
