-- Options: what a script declares, checked values from text or typed, the command line, --help. An
-- option is a record {name, type, default, choices, min, max, above, of, least, split, help, arg,
-- short, section}; types: integer, number, string, boolean, list, file, model, choice, chain.

local argparse = require "argparse"
local chain_text = require "llm.chain_text"
local common = require "llm.common"

local options = {}

local KEYS = {default = true, type = true, choices = true, min = true, max = true, above = true,
  of = true, least = true, split = true, help = true}
local TYPES = {integer = true, number = true, string = true, boolean = true, list = true,
  file = true, model = true, choice = true}
local RESERVED = {partial = true, arguments = true} -- fields of opt that are no options
local PLACES = {integer = "N", number = "X", string = "TEXT", list = "LIST", file = "FILE",
  model = "FILE", choice = "WHICH", device = "WHICH"}
local SECTIONS = {
  {"script", "Options of this script"}, {"prompt", "Model and prompt"}, {"end", "End of the text"},
  {"sampling", "Sampling (a chain, or penalties, temperature, top-k, top-p, min-p in this order)"},
  {"engine", "Engine"}, {"batch", "Many prompts"}, {"output", "Output"},
}

function options.flag(name)
  return "--" .. name:gsub("_", "-")
end

-- ---- values ----

local function show(value)
  if type(value) == "string" then return ("'%s'"):format(value) end
  if type(value) == "number" then return ("%.14g"):format(value) end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = tostring(item) end
  return table.concat(parts, ",")
end

local function describe_range(what, spec)
  if spec.min and spec.max then return ("%s from %s to %s"):format(what, spec.min, spec.max) end
  if spec.min then return ("%s of at least %s"):format(what, spec.min) end
  if spec.above then return ("%s above %s"):format(what, spec.above) end
  if spec.max then return ("%s of at most %s"):format(what, spec.max) end
  return what
end

-- What a value of the option is, in words: "an integer from 1 to 8".
function options.describe(spec)
  if spec.choices then
    local parts = {}
    for i, choice in ipairs(spec.choices) do parts[i] = tostring(choice) end
    return "one of " .. table.concat(parts, ", ")
  end
  if spec.type == "integer" then return describe_range("an integer", spec) end
  if spec.type == "number" then return describe_range("a number", spec) end
  if spec.type == "boolean" then return "true or false" end
  if spec.type == "list" then
    return describe_range(("a list of %ss"):format(spec.of or "string"), {min = spec.least})
  end
  if spec.type == "file" then return "a file that can be read" end
  if spec.type == "model" then return "a GGUF file" end
  if spec.type == "chain" then return "a chain of samplers" end
  if spec.type == "device" then return "one of auto, cpu, ref, cuda, cuda:N" end
  return "a text"
end

local function in_range(spec, x)
  return (not spec.min or x >= spec.min) and (not spec.max or x <= spec.max)
    and (not spec.above or x > spec.above)
end

local convert = {}

function convert.integer(spec, value)
  local x = math.tointeger(tonumber(value))
  if x and in_range(spec, x) then return x end
end

function convert.number(spec, value)
  local x = tonumber(value)
  if x and x == x and math.abs(x) < math.huge and in_range(spec, x) then return x end
end

function convert.string(_, value)
  if type(value) == "string" then return value end
end

convert.model = convert.string

local DEVICES = {auto = true, cpu = true, ref = true, cuda = true, ["cuda-emulated"] = true}

function convert.device(_, value)
  if type(value) ~= "string" then return nil end
  local name, index = value:match("^(cuda.-):(%d+)$")
  if DEVICES[value] or (DEVICES[name] and #index <= 3) then return value end
end

-- A text as it is, and data as the text that says the same.
function convert.chain(_, value)
  if type(value) == "string" then return value end
  return chain_text.write(value)
end

function convert.boolean(_, value)
  if type(value) == "boolean" then return value end
  if value == "true" or value == "false" then return value == "true" end
end

function convert.file(_, value)
  local file = type(value) == "string" and io.open(value, "rb")
  if not file then return nil end
  local readable = file:read(0) ~= nil or file:seek("end") == 0
  file:close()
  return readable and value or nil
end

function convert.choice(spec, value)
  for _, choice in ipairs(spec.choices) do
    if tostring(choice) == tostring(value) then return choice end
  end
end

local function split(text)
  local out = {}
  text = text:match("^%s*%[(.*)%]%s*$") or text
  if text:find("^%s*$") then return out end
  for item in (text .. ","):gmatch("([^,]*),") do out[#out + 1] = item:match("^%s*(.-)%s*$") end
  return out
end

function convert.list(spec, value)
  if type(value) == "string" then value = spec.split == false and {value} or split(value) end
  if type(value) ~= "table" then return nil end
  local item_spec, out, n = {type = spec.of or "string", min = spec.least}, {}, 0
  for i in pairs(value) do
    if math.type(i) ~= "integer" then return nil end
    n = n + 1
  end
  for i = 1, n do
    local item = value[i]
    if item ~= nil then item = convert[item_spec.type](item_spec, item) end
    if item == nil then return nil end
    out[i] = item
  end
  return out
end

-- The value as the option's type, from the command line's text or a typed value; or nil, message.
function options.check(spec, value)
  local out, why = convert[spec.type](spec, value)
  if out ~= nil and spec.choices and spec.type ~= "choice" then out = convert.choice(spec, out) end
  if out ~= nil then return out end
  local flag, wanted = options.flag(spec.name), options.describe(spec)
  if why then return nil, ("%s: %s"):format(flag, why) end
  return nil, ("%s: %s is not %s"):format(flag, show(value), wanted)
end

-- ---- what a script declares ----

local function is_record(value)
  if type(value) ~= "table" then return false end
  for key in pairs(value) do
    if KEYS[key] then return true end
  end
  return false
end

local function infer_type(value)
  if type(value) == "number" then return math.type(value) == "integer" and "integer" or "number" end
  if type(value) == "boolean" or type(value) == "string" then return type(value) end
  if type(value) == "table" then return "list" end
end

local function infer_item(list)
  local of = list and infer_type(list[1])
  for _, item in ipairs(list or {}) do
    if infer_type(item) ~= of then of = of == "integer" and infer_type(item) or of end
  end
  return of or "string"
end

local function read_spec(name, value)
  if type(name) ~= "string" or not name:find("^%l[%l%d_]*$") then
    return nil, ("option '%s': names are lower case letters, digits and _"):format(tostring(name))
  end
  if RESERVED[name] then return nil, ("option '%s': the name is taken"):format(name) end
  local spec = {}
  for key, item in pairs(is_record(value) and value or {default = value}) do
    if not KEYS[key] then
      return nil, ("option '%s': unknown key '%s'; known: %s"):format(name, tostring(key),
        "above, choices, default, help, least, max, min, of, split, type")
    end
    spec[key] = item
  end
  spec.name, spec.section = name, "script"
  spec.type = spec.type or (spec.choices and "choice") or infer_type(spec.default) or "string"
  if not TYPES[spec.type] then
    return nil, ("option '%s': unknown type '%s'"):format(name, tostring(spec.type))
  end
  if spec.type == "list" then spec.of = spec.of or infer_item(spec.default) end
  if spec.default ~= nil and spec.type ~= "file" and spec.type ~= "model" then
    local default, message = options.check(spec, spec.default)
    if default == nil then return nil, ("option '%s': default: %s"):format(name, message) end
    spec.default = default
  end
  return spec
end

-- `wanted` as a set of the common options, by the names in it or those of their sections; nil: all.
local function pick_common(wanted)
  local asked, known, picked = {}, {}, {}
  for _, name in ipairs(wanted or {}) do asked[name] = true end
  for _, spec in ipairs(common) do
    known[spec.name], known[spec.section] = true, true
    picked[spec.name] = not wanted or asked[spec.name] or asked[spec.section]
  end
  for name in pairs(asked) do
    if not known[name] then return nil, ("no common option '%s'"):format(tostring(name)) end
  end
  picked.help = true
  return picked
end

-- The options of a script (its table, or nil) and the common ones, as a list of records with an
-- index by name; or nil, message. wanted: a list of the common options, or of their sections, that
-- there are (nil: all). arguments: what the command line may hold besides options, in words
-- ("FILE…"); nil: nothing.
function options.collect(declared, wanted, arguments)
  local specs, names = {arguments = arguments}, {}
  if declared ~= nil and type(declared) ~= "table" then
    return nil, ("options must be a table, got a %s"):format(type(declared))
  end
  for name in pairs(declared or {}) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do
    local spec, message = read_spec(name, declared[name])
    if not spec then return nil, message end
    specs[#specs + 1], specs[name] = spec, spec
  end
  local picked, message = pick_common(wanted)
  if not picked then return nil, message end
  for _, spec in ipairs(common) do
    if picked[spec.name] and specs[spec.name] then
      return nil, ("option '%s' of the script is a common option"):format(spec.name)
    end
    if picked[spec.name] then specs[#specs + 1], specs[spec.name] = spec, spec end
  end
  return specs
end

-- The set of all common options, those that a tool does not take too.
function options.common_names()
  local names = {}
  for _, spec in ipairs(common) do names[spec.name] = true end
  return names
end

-- All flags, for the message that follows a wrong one.
function options.known(specs)
  local out = {}
  for i, spec in ipairs(specs) do out[i] = options.flag(spec.name) end
  return "known options: " .. table.concat(out, " ")
end

-- ---- the command line ----

local function help_of(spec)
  local parts = {spec.help}
  if spec.choices or (spec.section == "script" and spec.type ~= "boolean") then
    parts[#parts + 1] = options.describe(spec)
  end
  if spec.default ~= nil and (spec.default ~= false or spec.type == "choice") then
    parts[#parts + 1] = "default " .. show(spec.default)
  end
  if spec.type == "boolean" and spec.default then
    parts[#parts + 1] = options.flag("no_" .. spec.name) .. " turns it off"
  end
  return table.concat(parts, "; ")
end

-- --name, and --no-name for what is on by default.
local function add_flag(parser, flag, spec)
  parser:flag("--no-" .. options.flag(spec.name):sub(3)):count("*"):hidden(true)
    :action(function(result) result[spec.name] = {false} end)
  return parser:flag(flag):count("*"):description(help_of(spec))
    :action(function(result) result[spec.name] = {true} end)
end

local function make_parser(name, about, specs)
  local parser = argparse(name, about):add_help(false)
    :usage(("Usage: llmlua %s %s[options]"):format(name,
      specs.arguments and specs.arguments .. " " or ""))
    :help_max_width(98):help_description_margin(30)
  for _, section in ipairs(SECTIONS) do
    local elements = {}
    for _, spec in ipairs(specs) do
      if spec.section == section[1] then
        local flag = (spec.short and "-" .. spec.short .. " " or "") .. options.flag(spec.name)
        elements[#elements + 1] = spec.type == "boolean" and add_flag(parser, flag, spec)
          or parser:option(flag):count("*"):description(help_of(spec)):target(spec.name)
            :argname(spec.arg or PLACES[spec.type]):action("append")
      end
    end
    if #elements > 0 then parser:group(section[2], table.unpack(elements)) end
  end
  return parser
end

-- Joins each option with its value, as --name=value, so that a value may begin with anything.
-- Returns the list and the arguments that are no options; or nil, message. An option that is not
-- known is returned alone.
local function join_values(args, specs)
  local by_flag, off, out, positional, i = {}, {}, {}, {}, 1
  for _, spec in ipairs(specs) do
    by_flag[options.flag(spec.name)] = spec
    if spec.type == "boolean" then off[options.flag("no_" .. spec.name)] = spec end
    if spec.short then by_flag["-" .. spec.short] = spec end
  end
  while i <= #args do
    local arg = args[i]
    local name, value = arg:match("^(%-%-[^=]+)=(.*)$")
    if not name and arg:find("^%-[^-].") and by_flag[arg:sub(1, 2)] then
      name, value = arg:sub(1, 2), arg:sub(3)
    end
    local spec = by_flag[name or arg]
    if off[arg] and not spec then
      out[#out + 1] = arg
    elseif not spec and specs.arguments and not arg:find("^%-.") then
      positional[#positional + 1] = arg
    elseif not spec then
      if not arg:find("^%-.") or arg == "--" then
        return nil, ("unexpected argument '%s'"):format(arg)
      end
      return {arg}, positional, arg -- the parser says which known one is near
    elseif spec.type == "boolean" then
      local on = true
      if value then on = options.check(spec, value) end
      if on == nil then return nil, select(2, options.check(spec, value)) end
      out[#out + 1] = (on and "--" or "--no-") .. options.flag(spec.name):sub(3)
    else
      if not value then
        i = i + 1
        value = args[i]
      end
      if not value then return nil, ("%s: a value is missing"):format(options.flag(spec.name)) end
      out[#out + 1] = options.flag(spec.name) .. "=" .. value
    end
    i = i + 1
  end
  return out, positional
end

-- Returns the values by name (defaults filled in; `arguments`: what is no option) and the set of
-- names that were given; or nil, message.
function options.parse(args, specs)
  local joined, positional, unknown = join_values(args, specs)
  if not joined then return nil, positional end
  local ok, found = make_parser("SCRIPT", nil, specs):pparse(joined)
  if not ok then return nil, (found:gsub("\n", "; ")) end
  if unknown then return nil, ("unknown option '%s'"):format(unknown) end
  local values, given = {}, {}
  for _, spec in ipairs(specs) do
    local texts = found[spec.name]
    if type(texts) == "table" and #texts > 0 then
      local value
      if spec.type == "list" then
        value = {}
        for _, item in ipairs(texts) do
          local part, wrong = options.check(spec, item)
          if not part then return nil, wrong end
          table.move(part, 1, #part, #value + 1, value)
        end
      else
        local wrong
        value, wrong = options.check(spec, texts[#texts])
        if value == nil then return nil, wrong end
      end
      values[spec.name], given[spec.name] = value, true
    else
      values[spec.name] = spec.default
    end
  end
  values.arguments = positional
  return values, given
end

function options.help(name, about, specs)
  return make_parser(name, about, specs):get_help() .. "\n"
end

-- A table of values in which a misspelt name raises.
function options.seal(values, specs, extra)
  return setmetatable(values, {__index = function(_, name)
    if specs[name] or (extra and extra[name]) then return nil end
    local names = {}
    for i, spec in ipairs(specs) do names[i] = spec.name end
    error(("unknown option opt.%s; known: %s"):format(tostring(name), table.concat(names, ", ")), 2)
  end})
end

return options
