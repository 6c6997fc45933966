-- Joins the result files of shards (or of any runs over the same prompts) into one, in the order of
-- the prompts. Each prompt has one line: what is missing or there twice is named, and then nothing
-- is written.
local llm = require "llm"
local json = require "llm.json"
local results = require "llm.results"
local sys = require "llm.sys"

local MOST_NAMED = 10

local function refuse(format, ...)
  error(llm.error("input", format:format(...)), 0)
end

local function list_indexes(indexes)
  table.sort(indexes)
  local shown = table.concat(indexes, ", ", 1, math.min(#indexes, MOST_NAMED))
  return #indexes > MOST_NAMED and ("%s … (%d in all)"):format(shown, #indexes) or shown
end

-- Files whose states differ do not belong together. Returns the number of prompts, if one tells it.
local function check_states(paths)
  local first, first_path
  for _, path in ipairs(paths) do
    local state = results.state(path)
    if state then
      for _, key in ipairs {"model", "script", "input", "options"} do
        if first and json.encode(state[key]) ~= json.encode(first[key]) then
          refuse("%s and %s were made with another %s", first_path, path, key)
        end
      end
      if not first then first, first_path = state, path end
    end
  end
  return first and math.tointeger(first.prompts)
end

-- The files, opened; each index once.
local function open_all(paths, total)
  local sources, seen, twice, last, n_failed = {}, results.set(), {}, total or 0, 0
  for i, path in ipairs(paths) do
    local file, message = sys.open(path)
    if not file then refuse("%s: %s", path, message) end
    sources[i] = {file = file, name = path}
    local whole
    whole, message = results.scan(file, path, function(_, index, failed)
      if not seen:add(index) then twice[#twice + 1] = index end
      if failed then n_failed = n_failed + 1 end
      last = math.max(last, index)
      return true
    end)
    if not whole then refuse("%s", message) end
    if whole < file:size() then
      refuse("%s: its last line is not whole: continue that run first", path)
    end
  end
  if #twice > 0 then refuse("more than one result of %s", list_indexes(twice)) end
  return sources, seen, last, n_failed
end

local function find_missing(seen, last)
  local missing = {}
  for i = 1, seen.n < last and last or 0 do
    if not seen:has(i) then missing[#missing + 1] = i end
  end
  return missing
end

return {
  about = "join the results of shards into one file, in order",
  help = "FILE…: results of --out, such as x.1-of-2.jsonl x.2-of-2.jsonl. With FILE.state beside "
    .. "them it is known\nhow many prompts there were, and that they belong together.\n",
  arguments = "FILE…",
  common = {"quiet", "version"},
  model = false,
  options = {
    out = {type = "string", help = "where to write"},
    overwrite = {default = false, help = "also where a file is"},
    incomplete = {default = false, help = "also where results are missing"},
  },
  main = function(_, opt)
    local paths = opt.arguments
    if not opt.out then
      io.stderr:write "llmlua: no --out given (--help lists the options)\n"
      return 2
    end
    if sys.path_kind(opt.out) and not opt.overwrite then
      refuse("%s is there (--overwrite writes it anew)", opt.out)
    end
    local sources, seen, last, n_failed = open_all(paths, check_states(paths))
    local missing = find_missing(seen, last)
    if #missing > 0 and not opt.incomplete then
      refuse("no result of %s (--incomplete writes the others)", list_indexes(missing))
    end
    local ok, message = results.sorted(sources, opt.out)
    if not ok then refuse("cannot write: %s", message) end
    if not opt.quiet then
      io.stderr:write(("llmlua: %d results of %d files, %d of them failed, %d missing\n"):format(
        seen.n, #paths, n_failed, #missing))
    end
  end,
}
