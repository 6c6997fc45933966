-- The same prompts under several strategies, one table.
local llm = require "llm"
local batch = require "llm.batch"
local json = require "llm.json"
local lines = require "llm.lines"
local metrics = require "llm.metrics"
local options = require "llm.options"
local sys = require "llm.sys"

local ORDER = {"prompts", "strategies", "strategy", "failed", "tokens_per_s", "logprob", "length",
  "distinct_1", "distinct_2", "repetition", "same_text", "same_prefix"}

local HELP = [[
SCRIPT…: a strategy by name or path; with options of its own, quoted: "beam --beam 8". Sampling,
--max-tokens, --stop and the like hold for all. Columns, over the prompts that did not fail:
  tokens/s   new tokens of all prompts in a second, --jobs side by side, prefill included
  logprob    mean log-probability of a new token under the model, without filters (nats)
  length     mean number of new tokens
  dist-1/2   different 1-grams, 2-grams of all texts ÷ all of them (Li et al. 2016)
  rep-4      mean share of a text's 4-grams that it had before (Welleck et al. 2020)
  same       share of the prompts whose text is that of the first strategy
  prefix     mean share of the first strategy's tokens before the first difference
]]

local function refuse(format, ...)
  error(llm.error("misuse", format:format(...)), 0)
end

-- ---- what is compared ----

-- "beam --name 'two words'" → {"beam", "--name", "two words"}
local function split_words(text)
  local words, word, quote = {}, nil, nil
  for c in text:gmatch "." do
    if quote then
      if c == quote then quote = nil else word = word .. c end
    elseif c == "'" or c == '"' then
      quote, word = c, word or ""
    elseif c:find "%s" then
      words[#words + 1], word = word, nil
    else
      word = (word or "") .. c
    end
  end
  if quote then refuse("%s: a quote is not closed", text) end
  words[#words + 1] = word
  return words
end

-- {name, path, opts}: what the argument says, the options of this call in the places left.
local function read_strategy(text, opt)
  local words = split_words(text)
  local path = table.remove(words, 1)
  if not path then refuse("a strategy has no name") end
  local _, declared = batch.load(path)
  local own, message = options.collect(declared.options, batch.options())
  if not own then refuse("%s: %s", path, message) end
  local values, given = options.parse(words, own)
  if not values then refuse("%s: %s", path, given) end
  local opts = {ordered = true}
  for _, name in ipairs(batch.options()) do
    local value = rawget(opt, name)
    if opts[name] == nil then opts[name] = value end
  end
  for name in pairs(given) do opts[name] = values[name] end
  return {name = text, path = path, opts = opts}
end

local function read_prompts(opt)
  local prompts, message = lines.prompts(opt.prompts, opt.prompts_format)
  if not prompts then refuse("%s", message) end
  local list = {}
  while not opt.most or #list < opt.most do
    local index, request, wrong = prompts:next()
    if wrong then refuse("%s: %s", opt.prompts, prompts:place() .. wrong) end
    if not index then break end
    list[index] = request
  end
  if #list == 0 then refuse("%s holds no prompts", opt.prompts) end
  return list
end

-- ---- figures ----

-- The sum of the log-probabilities of what was made.
local function score(model, result)
  local kv <close> = model:cache()
  model:forward(kv, result.prompt_ids)
  return model:score(kv, result.ids):t():sum():item()
end

local function common_prefix(a, b)
  local n = 0
  while n < #a and a[n + 1] == b[n + 1] do n = n + 1 end
  return n
end

-- Runs one; returns its results by index, and the seconds it took.
local function run(model, strategy, prompts)
  local kept, start = {}, sys.clock()
  for result in batch.run(model, strategy.path, prompts, strategy.opts) do
    kept[result.index] = {text = result.text, ids = result.ids, prompt_ids = result.prompt_ids,
      error = result.error}
  end
  return kept, sys.clock() - start
end

local function mean(sum, n)
  return n > 0 and sum / n or nil
end

-- The row of a strategy. `first`: the results that the others are held against.
local function measure(model, strategy, kept, seconds, first)
  local lists, n, n_ids, logprob, repetition = {}, 0, 0, 0, 0
  local n_both, n_same, prefix = 0, 0, 0
  for i, result in ipairs(kept) do
    if not result.error then
      n, lists[#lists + 1] = n + 1, result.ids
      n_ids = n_ids + #result.ids
      if #result.ids > 0 then logprob = logprob + score(model, result) end
      repetition = repetition + metrics.repetition(result.ids, 4)
      local other = first[i]
      if not other.error then
        n_both = n_both + 1
        if other.text == result.text then n_same = n_same + 1 end
        prefix = prefix + (#other.ids == 0 and (#result.ids == 0 and 1 or 0)
          or common_prefix(other.ids, result.ids) / #other.ids)
      end
    end
  end
  return {strategy = strategy.name, failed = #kept - n, tokens_per_s = n_ids / seconds,
    logprob = mean(logprob, n_ids), length = mean(n_ids, n),
    distinct_1 = metrics.distinct(lists, 1), distinct_2 = metrics.distinct(lists, 2),
    repetition = mean(repetition, n),
    same_text = mean(n_same, n_both), same_prefix = mean(prefix, n_both)}
end

-- ---- the table ----

local COLUMNS = {
  {"tokens/s", "tokens_per_s", "%.1f"}, {"logprob", "logprob", "%.4f"},
  {"length", "length", "%.1f"},
  {"dist-1", "distinct_1", "%.3f"}, {"dist-2", "distinct_2", "%.3f"},
  {"rep-4", "repetition", "%.3f"}, {"same", "same_text", "%.2f"}, {"prefix", "same_prefix", "%.2f"},
  {"failed", "failed", "%d"},
}

local function print_line(width, name, cells)
  io.write(name, (" "):rep(width - #name))
  for i, cell in ipairs(cells) do
    io.write("  ", (" "):rep(math.max(8, #COLUMNS[i][1]) - #cell), cell)
  end
  io.write "\n"
end

local function print_row(width, row)
  local cells = {}
  for i, column in ipairs(COLUMNS) do
    local value = row[column[2]]
    cells[i] = value and column[3]:format(value) or "-"
  end
  print_line(width, row.strategy, cells)
end

local function print_head(strategies)
  local width, cells = #"strategy", {}
  for _, strategy in ipairs(strategies) do width = math.max(width, #strategy.name) end
  for i, column in ipairs(COLUMNS) do cells[i] = column[1] end
  print_line(width, "strategy", cells)
  return width
end

return {
  about = "the same prompts under several strategies, one table",
  help = HELP,
  arguments = "SCRIPT…",
  common = {"model", "end", "sampling", "engine", "prompts", "prompts_format", "jobs", "json",
    "quiet", "version"},
  options = {most = {type = "integer", min = 1, help = "of the prompts, the first so many"}},
  main = function(model, opt)
    if not opt.prompts then
      io.stderr:write "llmlua: no --prompts given (--help lists the options)\n"
      return 2
    end
    local strategies, rows, first = {}, json.list {}, nil
    for i, text in ipairs(opt.arguments) do strategies[i] = read_strategy(text, opt) end
    local prompts = read_prompts(opt)
    sys.progress(false)
    local width = not opt.json and print_head(strategies)
    for i, strategy in ipairs(strategies) do
      local kept, seconds = run(model, strategy, prompts)
      first = first or kept
      rows[i] = measure(model, strategy, kept, seconds, first)
      if width then
        print_row(width, rows[i])
        io.flush()
      end
    end
    if opt.json then
      io.write(json.encode({prompts = #prompts, strategies = rows}, ORDER), "\n")
    end
    for _, row in ipairs(rows) do
      if row.failed > 0 then return 3 end
    end
  end,
}
