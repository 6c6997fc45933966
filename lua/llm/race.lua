-- Strategies against greedy, in turns, on one prompt: the best of several runs of each, prefill
-- included. For strategies that make the same text faster: of those the text is compared too.
local batch = require "llm.batch"
local sys = require "llm.sys"

local race = {}

-- What speculation from the prompt is made for: a text whose words the answer takes up again.
race.PROMPT = [[
The harbour office published its yearly report on Monday. The report says that the new lighthouse
on the northern pier cost 4.2 million, that it was finished eleven weeks late, and that its lamp is
seen from nineteen miles. The old lighthouse on the southern pier was closed in March, and its
keeper, Maria Lindqvist, who had served there for thirty-one years, was given a medal by the mayor.
The harbour office says that the number of ships that called at the port rose from 1,840 to 2,115,
that most of them carried timber and grain, and that two of them ran aground in the January storms.
No one was hurt. The harbour office wants to build a third crane on the northern pier next year, if
the town council agrees. The town council will vote on the third crane in October.

Summary of the report:]]

-- The strategy alone on the prompt: its ids and the seconds it took.
local function run(model, name, prompt, n_tokens)
  local start, result = sys.clock(), nil
  for one in batch.run(model, name, {prompt}, {temperature = 0, max_tokens = n_tokens,
    jobs = 1}) do
    result = one
  end
  local seconds = sys.clock() - start
  if result.error then error(llm.error(result.error.kind, result.error.message), 0) end
  return result.ids, seconds
end

local function same(a, b)
  if #a ~= #b then return false end
  for i, id in ipairs(a) do
    if b[i] ~= id then return false end
  end
  return true
end

-- A list of {strategy, tokens, tps, ratio (of its tokens/s to greedy's), same (text)}, greedy
-- first.
function race.run(model, names, prompt, n_tokens, repeats)
  local rows = {{strategy = "greedy"}}
  for _, name in ipairs(names) do rows[#rows + 1] = {strategy = name} end
  for _ = 1, repeats do
    for _, row in ipairs(rows) do
      local ids, seconds = run(model, row.strategy, prompt, n_tokens)
      row.ids, row.tokens, row.tps = ids, #ids, math.max(row.tps or 0, #ids / seconds)
    end
  end
  local first = rows[1]
  local text = first.ids
  for _, row in ipairs(rows) do
    row.ratio, row.same, row.ids = row.tps / first.tps, same(row.ids, text), nil
  end
  return rows
end

-- The rows as text.
function race.show(rows)
  local out = {("%-20s %7s %10s %8s %6s\n"):format("", "tokens", "tokens/s", "greedy's", "text")}
  for _, row in ipairs(rows) do
    out[#out + 1] = ("%-20s %7d %10.1f %7.2fx %6s\n"):format(row.strategy, row.tokens, row.tps,
      row.ratio, row.same and "same" or "other")
  end
  return table.concat(out)
end

return race
