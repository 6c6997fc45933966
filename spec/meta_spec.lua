-- lua/llm/meta.lua against the module and the real metatables.
local h = require "spec.helper"
local llm = require "llm"

local function parse()
  local functions, fields, class = {}, {}, nil
  for line in io.lines "lua/llm/meta.lua" do
    local owner, name = line:match "^function ([%w]+)[.:]([%w_]+)%(.*%) end$"
    assert(owner or not line:find "^function", line)
    if owner then
      functions[owner] = functions[owner] or {}
      assert(not functions[owner][name], owner .. ":" .. name .. " is there twice")
      functions[owner][name] = true
    end
    class = line:match "^%-%-%-@class ([%w.]+)" or class
    local field = line:match "^%-%-%-@field ([%w_]+)"
    if field then
      fields[class] = fields[class] or {}
      fields[class][#fields[class] + 1] = field
    end
  end
  return functions, fields
end

local functions, fields = parse()

local function names(set, keep)
  local list = {}
  for name, value in pairs(set) do
    if not keep or keep(name, value) then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

local function is_method(_, value) return type(value) == "function" end

describe("meta.lua", function()
  local objects, model = {}, nil
  setup(function()
    model = h.tiny "llama-f32"
    objects = {Model = model, Cache = model:cache(), Tensor = llm.tensor {{1}}, Rng = llm.rng(),
      Seq = llm.seq()}
  end)
  teardown(function() model:close() end)

  it("has every function of the module and no other", function()
    local real = names(llm, function(name, value)
      return type(value) == "function" and not name:find "^fault" and name ~= "allocations"
    end)
    assert.same(real, names(functions.llm))
  end)

  it("has every method of every class and no other", function()
    for class, object in pairs(objects) do
      assert.same(names(debug.getmetatable(object).__methods, is_method), names(functions[class]),
        class)
      functions[class].is_checked = true
    end
    for class, list in pairs(functions) do assert(class == "llm" or list.is_checked, class) end
  end)

  it("has fields that are there", function()
    local may_be_nil = {name = true, chat_template = true, warning = true, bos = true,
      device_note = true}
    for class, object in pairs(objects) do
      for _, name in ipairs(fields["llm." .. class] or {}) do
        assert(object[name] ~= nil or may_be_nil[name], class .. "." .. name)
      end
    end
    local stats = llm.stats()
    assert.same(names(stats), names((function()
      local set = {}
      for _, name in ipairs(fields["llm.Stats"]) do set[name] = true end
      return set
    end)()))
    assert.equal("string", type(llm.version))
  end)

  it("documents each function", function()
    local previous = ""
    for line in io.lines "lua/llm/meta.lua" do
      if line:find "^function" then assert(previous:find "^%-%-%-", line) end
      previous = line
    end
  end)
end)
