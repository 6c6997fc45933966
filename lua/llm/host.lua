-- The program: reads the command line, finds the script, runs it as what it is (a strategy on one
-- prompt or on many, a tool, an ordinary program), and says how it ended.

local devices = require "llm.devices"
local ending = require "llm.ending"
local fail = require "llm.fail"
local guarded = require "llm.guarded"
local job = require "llm.job"
local jobs = require "llm.jobs"
local loading = require "llm.loading"
local options = require "llm.options"
local prompt = require "llm.prompt"
local report = require "llm.report"
local scripts = require "llm.scripts"
local single = require "llm.single"
local sys = require "llm.sys"

local host = {}

-- ---- lists and help ----

-- `about` of a bundled script, or nil if it is an ordinary program.
local function about_of(name)
  local ok, strategy = pcall(scripts.load(scripts.find("scripts/" .. name .. ".lua")))
  return ok and type(strategy) == "table" and strategy.about or nil
end

local function list_scripts()
  ending.put("Usage: llmlua SCRIPT [options]      (llmlua SCRIPT --help lists them)\n"
    .. "       llmlua --devices             (lists what there is to compute on)\n\n"
    .. "Bundled scripts:\n")
  for _, name in ipairs(scripts.bundled()) do
    ending.put(("  %-12s %s\n"):format(name, about_of(name) or ""))
  end
end

local HELP_END = [[

An option that takes a value takes the next argument, whatever it begins with. Text goes to standard
output, followed by one newline; all else to standard error. Exit status: 0 done, 1 failed, 2 wrong
usage, 3 some of many prompts failed, 130 interrupted.
]]

local HELP_PROMPT = [[
A newline at the end of a file or of standard input is no part of the prompt. Without any prompt the
built-in model continues "%s". With --prompts each line is a prompt: a text, or a JSON
object with "prompt" (text or ids), and optionally "id" and any option that one text may have.
]]

local function print_help(script, strategy, specs)
  local more = strategy.decode and HELP_PROMPT:format(prompt.DEFAULT) or ""
  local own = strategy.help and "\n" .. strategy.help or ""
  ending.put(options.help(script.name, strategy.about, specs) .. own .. HELP_END .. more)
end

-- ---- tools: scripts that have main(model, opt) instead of decode ----

-- The ids of the text that a tool needs.
local function read_text(tool, model, opt, given, specs)
  local text = prompt.read(opt, given, specs, true)
  if not opt.prompt_ids and (text or "") == "" then
    prompt.none(type(tool.prompt) == "string" and tool.prompt or "text")
  end
  local ids, message = job.encode(model, {prompt = text, prompt_ids = opt.prompt_ids})
  if ids then return ids end
  ending.exit(opt.prompt_ids and ending.USAGE or ending.FAILURE, "%s", message)
end

local function run_tool(tool, opt, given, specs)
  local model
  if tool.model ~= false then model = loading.models(opt, specs) end
  if tool.prompt then opt.prompt_ids = read_text(tool, model, opt, given, specs) end
  local ok, status, traceback = guarded(tool.main, model, opt)
  sys.progress(false)
  single.is_json_out = single.is_json_out or ok
  if ok and model and opt.verbose then io.stderr:write(report.memory(model), "\n") end
  if ok then return math.tointeger(status) or ending.OK end
  local partial = not ending.is_exit(status) and rawget(opt, "partial")
  if partial then
    local kind, message = fail.read(status)
    if sys.interrupted() then kind, message = "interrupted", "interrupted" end
    single.is_json_out = true
    partial {kind = kind, message = message}
  end
  ending.fail_script(status, traceback)
end

-- ---- any script ----

local function globals_of_now()
  local names = {}
  for name in pairs(_G) do names[name] = true end
  return names
end

-- Runs the file once: an ordinary program does its work and returns nothing.
local function open_script(name)
  local script, message = scripts.find(name)
  if not script then ending.usage(message) end
  if script.folder then scripts.add_folder(script.folder) end
  local before = globals_of_now()
  local chunk
  chunk, message = scripts.load(script)
  if not chunk then ending.exit(ending.FAILURE, "%s", message) end
  local ok, strategy, traceback = guarded(chunk, table.unpack(arg))
  if not ok then ending.fail_script(strategy, traceback) end
  if strategy == nil then return nil end
  for global in pairs(globals_of_now()) do
    if not before[global] then _G[global] = nil end
  end
  if type(strategy) ~= "table" or (strategy.decode ~= nil) == (strategy.main ~= nil)
    or type(strategy.decode or strategy.main) ~= "function" then
    ending.exit(ending.FAILURE, "%s returns a %s, not a table with a function decode", name,
      type(strategy))
  end
  return strategy, script
end

local TOOL_COMMON = {"prompt", "end", "sampling", "engine", "output"} -- of a tool that names none

local function collect_options(name, strategy)
  local specs, message = options.collect(strategy.options,
    strategy.main and (strategy.common or TOOL_COMMON), strategy.main and strategy.arguments)
  if not specs then ending.exit(ending.FAILURE, "%s: %s", name, message) end
  return specs
end

local function run_script(name, args)
  local strategy, script = open_script(name)
  if not strategy then return sys.interrupted() and ending.INTERRUPTED or ending.OK end
  local specs = collect_options(name, strategy)
  local opt, given = options.parse(args, specs)
  if not opt then ending.usage(given, specs) end
  if opt.help then
    print_help(script, strategy, specs)
    return ending.OK
  end
  if opt.version then
    ending.put(("llmlua %s\n"):format(sys.version))
    return ending.OK
  end
  if specs.arguments and #opt.arguments == 0 then
    ending.usage(("no %s given"):format(specs.arguments), specs)
  end
  sys.progress(not opt.quiet)
  opt = options.seal(opt, specs, options.common_names())
  local is_many = strategy.decode and jobs.is_wanted(opt, given, specs)
  local run_it = strategy.main and run_tool or is_many and jobs.run or single.run
  local ok, status = xpcall(run_it, ending.keep, strategy.main and strategy or script, opt, given,
    specs)
  if ok then return status end
  if opt.json and not is_many then single.print_failure(status) end
  error(status, 0)
end

local function show_devices(args)
  local specs = assert(options.collect(nil, {"cuda_lib"}))
  local opt, message = options.parse(args, specs)
  if not opt then ending.usage(message, specs) end
  ending.put(opt.help and options.help("--devices", "Lists what there is to compute on.", specs)
    or devices.show {cuda_lib = opt.cuda_lib})
  return ending.OK
end

local function run_arguments(args)
  local name = args[1]
  if not name or name == "--help" or name == "-h" then
    list_scripts()
    return ending.OK
  end
  if name == "--version" then
    ending.put(("llmlua %s\n"):format(sys.version))
    return ending.OK
  end
  if name == "--devices" then return show_devices(table.move(args, 2, #args, 1, {})) end
  if name:sub(1, 1) == "-" then
    ending.usage(("the script comes first: llmlua SCRIPT [options]; bundled: %s")
      :format(table.concat(scripts.bundled(), ", ")))
  end
  arg = {[-1] = args[0], [0] = name}
  table.move(args, 2, #args, 1, arg)
  return run_script(name, table.move(arg, 1, #arg, 1, {}))
end

local function run_and_tell(args)
  local ok, status = xpcall(run_arguments, ending.keep, args)
  if ok then return status end
  sys.progress(false)
  if ending.is_exit(status) then
    if status.message then ending.say("%s", status.message) end
    return status.status
  end
  ending.say("%s", tostring(status))
  return sys.interrupted() and ending.INTERRUPTED or ending.FAILURE
end

-- args: [0] the program, [1] … what followed. Returns the exit status: 130 after Ctrl-C, 143 where
-- the signal was SIGTERM.
function host.main(args)
  local status = run_and_tell(args)
  return status == ending.INTERRUPTED and sys.stop_status() or status
end

return host
