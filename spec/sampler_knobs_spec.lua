-- Every parameter of every sampler makes a difference, and every bundled sampler is tried.
local llm = require "llm"
local samplers = require "spec.samplers"
local sys = require "llm.sys"
local h = require "spec.helper"

local function names()
  local out = {}
  for _, file in ipairs(sys.files()) do out[#out + 1] = file:match "^samplers/([^/]+)%.lua$" end
  table.sort(out)
  return out
end

-- The parameters, with a note of what is asked for.
local function watch(params, asked)
  return setmetatable({}, {__index = function(_, key)
    asked[key] = true
    return params[key]
  end})
end

local function with(base, key, value)
  local out = {}
  for k, v in pairs(base) do out[k] = v end
  if key == "text" then out.ids = nil end -- of forced: one or the other
  out[key] = value
  return out
end

describe("every knob:", function()
  local model, prompt, output, steps

  -- A text that repeats itself, and the model's logits at its last places.
  setup(function()
    model = h.builtin()
    prompt = model:encode "And the LORD said unto the LORD, and the LORD said"
    output = model:encode(" unto the LORD, and the LORD said unto the", {add_special = false})
    local kv <close> = model:cache()
    local all = table.move(output, 1, #output - 1, #prompt + 1, {table.unpack(prompt)})
    steps = model:forward(kv, all, {rows = #output})
  end)
  teardown(function() model:close() end)

  -- What a sampler makes of the last four steps, as one list; params may be a proxy.
  local function run(name, params)
    local stage = require("samplers." .. name)(params, model)
    local short, long, out = llm.seq(prompt), llm.seq(prompt), {}
    for i, id in ipairs(output) do
      if i > #output - 4 then
        local logits, seqs = steps:row(i), {long}
        local values = stage(logits, seqs):lists()[1]
        table.move(values, 1, #values, #out + 1, out)
        values = stage(logits, {short}):lists()[1] -- at the beginning of its output
        table.move(values, 1, #values, #out + 1, out)
        short:push(id)
      end
      long:push(id)
    end
    return out
  end

  local function is_same(a, b)
    for i, x in ipairs(a) do
      if x ~= b[i] then return false end
    end
    return true
  end

  it("the list of what is tried holds every bundled sampler", function()
    local tried = {}
    for name in pairs(samplers) do tried[#tried + 1] = name end
    table.sort(tried)
    assert.same(names(), tried)
  end)

  for _, name in ipairs(names()) do
    it(name .. ": each parameter changes an output", function()
      local case = samplers[name]
      local asked = {}
      local plain = run(name, watch(case.base, asked))
      for key in pairs(asked) do assert(case.knobs[key], name .. " has an untried " .. key) end
      for key, values in pairs(case.knobs) do
        assert(asked[key], ("%s never asks for %s"):format(name, key))
        local differs = false
        for _, value in ipairs(values) do
          differs = differs or not is_same(plain, run(name, with(case.base, key, value)))
        end
        assert(differs, ("no value of %s changes what %s does"):format(key, name))
      end
    end)
  end

  it("tau and eta of mirostat are not interchangeable", function()
    for _, name in ipairs {"mirostat_v1", "mirostat_v2"} do
      assert.is_false(is_same(run(name, {tau = 2, eta = 0.5}), run(name, {tau = 0.5, eta = 2})))
    end
  end)
end)
