-- What specs share: models, data, comparisons, the program run as a user runs it.
local llm = require "llm"
local json = require "dkjson"

local M = {}

M.program = os.getenv "LLMLUA_PROGRAM" or "build/llmlua"
M.data = "spec/data/"

local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "a"
  file:close()
  return text
end
M.read = read

function M.write(path, text)
  local file = assert(io.open(path, "wb"))
  assert(file:write(text))
  assert(file:close())
  return path
end

function M.exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

local folder
-- A path in a folder of this run that is removed at its end.
function M.scratch(name)
  if not folder then
    folder = os.tmpname()
    os.remove(folder)
    assert(os.execute("mkdir -p '" .. folder .. "'"))
    M.at_exit = setmetatable({}, {__gc = function() os.execute("rm -rf '" .. folder .. "'") end})
  end
  return folder .. "/" .. name
end

-- Iterates over the objects of a file of JSON lines. "-inf", "inf", "nan" become numbers.
local special = {["-inf"] = -math.huge, inf = math.huge, nan = 0 / 0}
local function numbers(value)
  if type(value) == "table" then
    for key, entry in pairs(value) do
      if type(entry) == "table" then numbers(entry)
      elseif special[entry] then value[key] = special[entry] end
    end
  end
  return value
end

function M.lines(path)
  local next_line = io.lines(M.data .. path)
  return function()
    local line = next_line()
    if line then
      local value, _, message = json.decode(line, 1, nil)
      return assert(value and numbers(value), message)
    end
  end
end

-- Options that a full collection after each call of the engine stress (LLMLUA_SPEC_GC=1).
local function collecting(f)
  return function(...)
    local results = table.pack(f(...))
    collectgarbage()
    return table.unpack(results, 1, results.n)
  end
end

local function stress(value)
  local mt = debug.getmetatable(value)
  local methods = type(mt) == "table" and (rawget(mt, "__methods") or mt.__index)
  if type(methods) ~= "table" or rawget(methods, "stressed") then return end
  for name, f in pairs(methods) do
    if type(f) == "function" then methods[name] = collecting(f) end
  end
  methods.stressed = true
end

-- Specs leave the user's cache folder alone.
local keeps = os.getenv "LLMLUA_WEIGHT_CACHE"

-- A device that takes the place of all others (LLMLUA_TEST_DEVICE; LLMLUA_DEVICE, which is that of
-- whoever names none, is then the same), or nil. LLMLUA_TEST_GPU_LAYERS: with so many layers there.
M.device = os.getenv "LLMLUA_TEST_DEVICE"
if M.device == "" then M.device = nil end

function M.load(path, opts)
  local options = {weight_cache = not keeps and "off" or nil}
  for key, value in pairs(opts or {}) do options[key] = value end
  if M.device then
    options.device = M.device
    if options.gpu_layers == nil then
      options.gpu_layers = math.tointeger(tonumber(os.getenv "LLMLUA_TEST_GPU_LAYERS"))
    end
    if options.invariant == nil then
      options.invariant = os.getenv "LLMLUA_TEST_INVARIANT" ~= nil
    end
  end
  local model, message = llm.load(path, options)
  if model and os.getenv "LLMLUA_SPEC_GC" then
    stress(model)
    local kv <close> = model:cache()
    stress(kv)
    stress(llm.tensor {{0}})
    stress(llm.logits {{0}})
    stress(llm.rng(0))
  end
  return model, message
end

-- spec/data/models/NAME.gguf, on the reference device unless opts say otherwise.
function M.tiny(name, opts)
  local options = {device = "ref", threads = 1}
  for key, value in pairs(opts or {}) do options[key] = value end
  return assert(M.load(M.data .. "models/" .. name .. ".gguf", options))
end

-- The built-in model.
function M.builtin(opts)
  local options = {threads = 1}
  for key, value in pairs(opts or {}) do options[key] = value end
  -- llm.so carries none
  return M.load(nil, options) or assert(M.load("models/builtin.gguf", options))
end

-- A real model fetched by scripts/fetch_models.sh, or nil: then the spec is pending.
local real = {
  smollm2 = "SmolLM2-135M-Instruct.Q4_1.gguf",
  gemma3 = "gemma-3-270m-q4_k_m.gguf",
}
function M.real_path(name)
  local home = os.getenv "XDG_CACHE_HOME" or (os.getenv "HOME" or "") .. "/.cache"
  local path = (os.getenv "LLMLUA_MODELS" or home .. "/llmlua/models") .. "/" .. real[name]
  return M.exists(path) and path or nil
end

-- The `it` of specs that need a real model: pending without it.
function M.with(path, it, pending)
  return function(sentence, body)
    if path then return it(sentence, body) end
    pending(sentence .. " (the model could not be fetched)")
  end
end

-- Runs the program; returns stdout, stderr, exit code. `input` is stdin (nil: /dev/null);
-- `settings`: of its environment, as a shell writes them.
function M.run(arguments, input, settings)
  local out, err = M.scratch "stdout", M.scratch "stderr"
  local from = "/dev/null"
  if input then from = M.write(M.scratch "stdin", input) end
  local variables = (keeps and "" or "LLMLUA_WEIGHT_CACHE=off ") .. (settings or "") .. " "
  local command = ("%s%s %s <'%s' >'%s' 2>'%s'"):format(variables, M.program, arguments, from, out,
    err)
  local _, how, code = os.execute(command)
  if how == "signal" then code = 128 + code end
  return read(out), read(err), code
end

function M.quote(text)
  return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- Fails unless the text holds each of these.
function M.says(text, ...)
  for _, words in ipairs {...} do
    assert(text:find(words, 1, true), ("%q is not in %q"):format(words, text))
  end
end

-- Largest absolute difference of two lists.
function M.difference(a, b)
  assert(#a == #b, ("lists of %d and %d entries"):format(#a, #b))
  local worst = 0
  for i = 1, #a do
    if a[i] ~= b[i] then
      local d = math.abs(a[i] - b[i])
      worst = d > worst and d or d ~= d and math.huge or worst
    end
  end
  return worst
end

function M.largest(list)
  local most = 0
  for i = 1, #list do most = math.max(most, math.abs(list[i])) end
  return most
end

-- Greedy ids by the argmax of each step.
function M.greedy(model, ids, n)
  local kv <close> = model:cache()
  local logits, made = model:forward(kv, ids), {}
  for i = 1, n do
    local id = logits:argmax():item()
    made[i] = id
    if i < n then logits = model:forward(kv, id) end
  end
  return made
end

return M
