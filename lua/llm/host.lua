-- The program: reads the command line, loads script and model, runs, prints, and says how it ended.

local llm = require "llm"
local chain = require "llm.chain"
local fail = require "llm.fail"
local guarded = require "llm.guarded"
local json = require "llm.json"
local options = require "llm.options"
local report = require "llm.report"
local run = require "llm.run"
local scripts = require "llm.scripts"
local stop = require "llm.stop"
local sys = require "llm.sys"

local host = {}

local OK, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130
local DEFAULT_PROMPT = "In the beginning"

-- ---- ending early: an exit status and a message travel as an error ----

local Exit = {}

local function exit(status, format, ...)
  error(setmetatable({status = status, message = format and format:format(...)}, Exit), 0)
end

-- specs: known options are listed after an unknown one, and --help is named after all else.
local function usage(message, specs)
  local more = ""
  if specs then
    more = message:find "^unknown option" and "\n" .. options.known(specs)
      or " (--help lists the options)"
  end
  exit(USAGE, "%s%s", message, more)
end

local function say(format, ...)
  io.stderr:write("llmlua: ", format:format(...), "\n")
end

-- Bytes to standard output, unbuffered. A reader that has gone ends the program quietly.
local function put(bytes)
  local ok, message, kind = sys.write(1, bytes)
  if ok then return end
  if kind == "pipe" then exit(OK) end
  exit(FAILURE, "cannot write to standard output: %s", message)
end

-- No fault of a line.
local NO_PLACE = {interrupted = true, time = true, cache_full = true, input = true}

-- Ends with a failure of this kind: its message and, of llm's own errors, where in the script it
-- was raised; for all others the traceback.
local function fail_as(kind, message, traceback)
  local text = message
  if kind == "script" and traceback then
    text = traceback:sub(1, #message) == message and traceback or message .. "\n" .. traceback
  elseif traceback and not NO_PLACE[kind] then
    local place = fail.place(traceback)
    text = place and ("%s\n  at %s"):format(message, place) or message
  end
  error(setmetatable({status = FAILURE, message = text, kind = kind, plain = message}, Exit), 0)
end

-- Ends with what a script raised.
local function fail_script(value, traceback)
  if getmetatable(value) == Exit then error(value, 0) end
  if sys.interrupted() then exit(INTERRUPTED, "interrupted") end
  fail_as(fail.read(value, traceback))
end

-- ---- lists and help ----

-- `about` of a bundled script, or nil if it is an ordinary program.
local function about_of(name)
  local ok, strategy = pcall(scripts.load(scripts.find("scripts/" .. name .. ".lua")))
  return ok and type(strategy) == "table" and strategy.about or nil
end

local function list_scripts()
  put("Usage: llmlua SCRIPT [options]      (llmlua SCRIPT --help lists them)\n\nBundled scripts:\n")
  for _, name in ipairs(scripts.bundled()) do
    put(("  %-12s %s\n"):format(name, about_of(name) or ""))
  end
end

local HELP_END = [[

An option that takes a value takes the next argument, whatever it begins with. Text goes to standard
output, followed by one newline; all else to standard error. Exit status: 0 done, 1 failed, 2 wrong
usage, 130 interrupted.
]]

local HELP_PROMPT = [[
A newline at the end of a file or of standard input is no part of the prompt. Without any prompt the
built-in model continues "%s".
]]

-- ---- the model ----

local function load_opts(opt)
  local eog = opt.eog
  if opt.ignore_eog then eog = {} end
  return {device = opt.device, threads = opt.threads, ctx = opt.ctx, kv = opt.kv,
    pages = opt.pages, max_rows = opt.max_rows, eog = eog}
end

local function load_model(path, opt)
  local model, message = llm.load(path, load_opts(opt))
  if model then return model end
  if sys.interrupted() then exit(INTERRUPTED, "interrupted") end
  exit(FAILURE, "%s", message)
end

local function load_models(opt, specs)
  local path = opt.model or os.getenv("LLMLUA_MODEL")
  if path == "" then path = nil end
  local model = load_model(path, opt)
  for _, spec in ipairs(specs) do
    if spec.type == "model" and opt[spec.name] then
      opt[spec.name] = load_model(opt[spec.name], opt)
    end
  end
  if model.warning and not opt.quiet then say("%s", model.warning) end
  if opt.verbose then io.stderr:write(model:describe(), "\n") end
  return model, path == nil
end

-- ---- the prompt ----

local function read_all(file, name)
  local text, message = file:read("a")
  if sys.interrupted() then exit(INTERRUPTED, "interrupted") end
  if not text then exit(FAILURE, "%s: %s", name, message) end
  return text
end

local function read_file(path)
  if path == "-" then return read_all(io.stdin, "standard input") end
  local file, message = io.open(path, "rb")
  if not file then exit(FAILURE, "%s", message) end
  local text = read_all(file, path)
  file:close()
  return text
end

-- The text of the prompt, or nil where ids were given or nothing was. `whole`: a file keeps its
-- last newline.
local function read_prompt(opt, given, specs, whole)
  local n = 0
  for _, name in ipairs {"prompt", "file", "prompt_ids"} do n = n + (given[name] and 1 or 0) end
  if n > 1 then usage("--prompt, --file and --prompt-ids: give one of them", specs) end
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

local function no_prompt(what)
  usage(("no %s: give --prompt, --file or --prompt-ids, or pipe it in"):format(what))
end

-- The prompt of a strategy: the built-in model has one of its own.
local function find_prompt(opt, given, specs, is_builtin)
  local text = read_prompt(opt, given, specs)
  if text or opt.prompt_ids then return text end
  if not is_builtin then no_prompt("prompt") end
  if not opt.quiet then say("prompt \"%s\"", DEFAULT_PROMPT) end
  return DEFAULT_PROMPT
end

-- The ids of the prompt. An empty one is the model's BOS.
local function encode_prompt(model, text, opt)
  local ids = opt.prompt_ids or model:encode(text)
  for i, id in ipairs(ids) do
    if id >= model.vocab_size then
      exit(USAGE, "--prompt-ids: id %d at place %d is not in the vocabulary of %d", id, i,
        model.vocab_size)
    end
  end
  if #ids == 0 then
    if not model.bos then exit(FAILURE, "the prompt is empty and the model has no BOS token") end
    ids = {model.bos}
  end
  return ids
end

-- ---- strategies ----

local json_is_out = false -- the line of --json

-- The line of --json for what failed before there was a result.
local function print_failure(value)
  if json_is_out or getmetatable(value) == Exit and value.status == OK then return end
  json_is_out = true
  local kind, message = value.kind, value.plain or value.message
  if getmetatable(value) ~= Exit then kind, message = fail.read(value) end
  if not kind then
    kind = value.status == USAGE and "misuse" or value.status == INTERRUPTED and "interrupted"
      or "input"
  end
  pcall(put, json.encode({error = {kind = kind, message = message}}) .. "\n")
end

local function print_result(result, opt, streamed)
  if opt.json then
    json_is_out = true
    put(json.encode(result) .. "\n")
  else
    if not streamed then put(result.text) end
    put("\n")
  end
end

local function check_stops(opt, specs)
  for _, text in ipairs(opt.stop or {}) do
    if text == "" then usage("--stop: an empty text would stop at once", specs) end
  end
end

local function finish(job, result, opt)
  if not opt.quiet and not result.error then
    if result.counts.output == 0 and opt.max_tokens > 0 then
      say("warning: the strategy ended before its first token")
    elseif job.n_late > 1000 then
      say("warning: the strategy went on emitting after the end of the text, until it was ended")
    end
  end
  if not opt.quiet and (not result.error or #result.ids > 0) then
    if job.n_stages > 0 and not opt.sampler.asked and not result.error then
      say("warning: this strategy does not use the sampler chain (%s)", job.chain_text)
    end
    io.stderr:write("llmlua: ", report.figures(result), "\n")
  end
  local wrong = result.error
  if not wrong then return OK end
  if wrong.kind == "interrupted" then exit(INTERRUPTED, "interrupted") end
  fail_as(wrong.kind, wrong.message, wrong.traceback ~= json.null and wrong.traceback)
end

local function chain_text(stages)
  local names = {}
  for i, stage in ipairs(stages) do names[i] = stage.name end
  return table.concat(names, ", ")
end

local function run_strategy(script, opt, given, specs)
  check_stops(opt, specs)
  if opt.logprobs and not opt.json then usage("--logprobs needs --json", specs) end
  local stages, message = chain.collect(opt)
  if not stages then usage(message, specs) end
  local rule
  if opt.stop_rule then
    rule, message = stop.load_rule(opt.stop_rule)
    if not rule then exit(FAILURE, "%s", message) end
  end
  local model, is_builtin = load_models(opt, specs)
  local filter
  filter, message = chain.build(stages, model)
  if not filter then exit(USAGE, "%s", message) end
  local prompt = encode_prompt(model, find_prompt(opt, given, specs, is_builtin), opt)
  if #prompt > model.ctx then
    exit(FAILURE, "prompt too long: %d tokens, the context holds %d (--ctx)", #prompt, model.ctx)
  end
  opt.max_tokens = math.min(opt.max_tokens, model.ctx - #prompt + 1)
  opt.max_rows = model.max_rows

  local broken, streamed
  local function sink(bytes)
    if not streamed then sys.progress(false) end
    streamed = true
    local ok, wrong = pcall(put, bytes)
    if not ok then
      broken = wrong
      error(wrong, 0)
    end
  end
  local job = {model = model, script = script, prompt = prompt, opt = opt, stages = filter,
    rule = rule, sink = not opt.json and sink or nil, n_stages = #stages,
    chain_text = chain_text(stages)}
  local result = run.job(job)
  job.n_late, result.n_late = result.n_late or 0, nil
  sys.progress(false)
  if broken then error(broken, 0) end
  if not result.error or #result.ids > 0 or opt.json then print_result(result, opt, streamed) end
  return finish(job, result, opt)
end

-- ---- tools: scripts that have main(model, opt) instead of decode ----

local function run_tool(tool, opt, given, specs)
  local model
  if tool.model ~= false then
    model = load_models(opt, specs)
  end
  if tool.prompt then
    local text = read_prompt(opt, given, specs, true)
    if not opt.prompt_ids and (text or "") == "" then
      no_prompt(type(tool.prompt) == "string" and tool.prompt or "text")
    end
    opt.prompt_ids = encode_prompt(model, text, opt)
  end
  local ok, status, traceback = guarded(tool.main, model, opt)
  sys.progress(false)
  json_is_out = json_is_out or ok
  if ok then return math.tointeger(status) or OK end
  local partial = getmetatable(status) ~= Exit and rawget(opt, "partial")
  if partial then
    local kind, message = fail.read(status)
    if sys.interrupted() then kind, message = "interrupted", "interrupted" end
    json_is_out = true
    partial {kind = kind, message = message}
  end
  fail_script(status, traceback)
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
  if not script then usage(message) end
  if script.folder then scripts.add_folder(script.folder) end
  local before = globals_of_now()
  local chunk
  chunk, message = scripts.load(script)
  if not chunk then exit(FAILURE, "%s", message) end
  local ok, strategy, traceback = guarded(chunk, table.unpack(arg))
  if not ok then fail_script(strategy, traceback) end
  if strategy == nil then return nil end
  for global in pairs(globals_of_now()) do
    if not before[global] then _G[global] = nil end
  end
  if type(strategy) ~= "table" or (strategy.decode ~= nil) == (strategy.main ~= nil)
    or type(strategy.decode or strategy.main) ~= "function" then
    exit(FAILURE, "%s returns a %s, not a table with a function decode", name, type(strategy))
  end
  return strategy, script
end

local function keep_error(value)
  if getmetatable(value) == Exit or fail.is_error(value) then return value end
  return fail.describe(value)
end

local function run_script(name, args)
  local strategy, script = open_script(name)
  if not strategy then return sys.interrupted() and INTERRUPTED or OK end
  local specs, message = options.collect(strategy.options, strategy.main and strategy.common)
  if not specs then exit(FAILURE, "%s: %s", name, message) end
  local opt, given = options.parse(args, specs)
  if not opt then usage(given, specs) end
  if opt.help then
    put(options.help(script.name, strategy.about, specs) .. HELP_END
      .. (strategy.decode and HELP_PROMPT:format(DEFAULT_PROMPT) or ""))
    return OK
  end
  if opt.version then
    put(("llmlua %s\n"):format(sys.version))
    return OK
  end
  sys.progress(not opt.quiet)
  opt = options.seal(opt, specs, options.common_names())
  local run_it = strategy.main and run_tool or run_strategy
  local ok, status = xpcall(run_it, keep_error, strategy.main and strategy or script, opt, given,
    specs)
  if ok then return status end
  if opt.json then print_failure(status) end
  error(status, 0)
end

local function run_arguments(args)
  local name = args[1]
  if not name or name == "--help" or name == "-h" then
    list_scripts()
    return OK
  end
  if name == "--version" then
    put(("llmlua %s\n"):format(sys.version))
    return OK
  end
  if name:sub(1, 1) == "-" then
    usage(("the script comes first: llmlua SCRIPT [options]; bundled: %s")
      :format(table.concat(scripts.bundled(), ", ")))
  end
  arg = {[-1] = args[0], [0] = name}
  table.move(args, 2, #args, 1, arg)
  return run_script(name, table.move(arg, 1, #arg, 1, {}))
end

-- args: [0] the program, [1] … what followed. Returns the exit status.
function host.main(args)
  local ok, status = xpcall(run_arguments, keep_error, args)
  if ok then return status end
  sys.progress(false)
  if getmetatable(status) == Exit then
    if status.message then say("%s", status.message) end
    return status.status
  end
  say("%s", tostring(status))
  return sys.interrupted() and INTERRUPTED or FAILURE
end

return host
