-- The one prompt of a run: where the command line finds its text.

local ending = require "llm.ending"
local sys = require "llm.sys"

local prompt = {DEFAULT = "In the beginning"} -- of the built-in model

local function read_all(file, name)
  local text, message = file:read("a")
  if sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  if not text then ending.exit(ending.FAILURE, "%s: %s", name, message) end
  return text
end

local function read_file(path)
  if path == "-" then return read_all(io.stdin, "standard input") end
  local file, message = io.open(path, "rb")
  if not file then ending.exit(ending.FAILURE, "%s", message) end
  local text = read_all(file, path)
  file:close()
  return text
end

-- The text of the prompt, or nil where ids were given or nothing was. `whole`: a file keeps its
-- last newline.
function prompt.read(opt, given, specs, whole)
  local n = 0
  for _, name in ipairs {"prompt", "file", "prompt_ids"} do n = n + (given[name] and 1 or 0) end
  if n > 1 then ending.usage("--prompt, --file and --prompt-ids: give one of them", specs) end
  if opt.prompt_ids then return nil end
  if opt.prompt then return opt.prompt end
  local text
  if opt.file then
    text = read_file(opt.file)
  else
    local kind = sys.stdin_kind()
    if kind == "pipe" or kind == "file" then text = read_file("-") end
    if text == "" then text = nil end
  end
  if text and not whole then text = text:gsub("\r?\n$", "") end
  return text
end

function prompt.none(what)
  ending.usage(("no %s: give --prompt, --file or --prompt-ids, or pipe it in"):format(what))
end

-- The prompt of a strategy: the built-in model has one of its own.
function prompt.find(opt, given, specs, is_builtin)
  local text = prompt.read(opt, given, specs)
  if text or opt.prompt_ids then return text end
  if not is_builtin then prompt.none("prompt") end
  if not opt.quiet then ending.say("prompt \"%s\"", prompt.DEFAULT) end
  return prompt.DEFAULT
end

return prompt
