-- What the specs of strategies share: a model at hand, runs that must succeed, and the steps of
-- plain algorithms that compute everything anew.
local assert = require "luassert"
local h = require "spec.helper"
local jobs = require "spec.jobs"

local M = {prompt = "And the LORD said unto"}

-- Chains of all kinds: none, cuts, one that remembers, one that masks, greedy.
M.chains = {"", "--temperature 0.7 --top-k 30", "--top-p 0.8 --repetition-penalty 1.3",
  "--min-tokens 20", "--temperature 0"}

-- The result of a job on M.model.
function M.run(strategy, arguments, prompt, values)
  return M.result_of(M.model, strategy, arguments, prompt, values)
end

-- setup and teardown: the built-in model at hand.
function M.open() M.model = h.builtin {threads = 2} end
function M.close() M.model:close() end

-- Runs the body with another model.
function M.with_model(other, body)
  local before = M.model
  M.model = other
  local ok, message = pcall(body, other)
  M.model = before
  other:close()
  assert(ok, message)
end

function M.join(a, b)
  return table.move(b, 1, #b, #a + 1, table.move(a, 1, #a, 1, {}))
end

-- All ids of the lists in one.
function M.concat(...)
  local all = {}
  for _, ids in ipairs {...} do table.move(ids, 1, #ids, #all + 1, all) end
  return all
end

-- The result of a job (see jobs.make) that must succeed; that must be refused with this message.
function M.result_of(...)
  local result = jobs.run(...)
  assert(not result.error, result.error and result.error.message)
  return result
end

function M.refused(message, ...)
  local result = jobs.run(...)
  assert(result.error, "no error")
  assert.equal("input", result.error.kind)
  assert.truthy(result.error.message:find(message, 1, true), result.error.message)
end

-- Scores are sums of log-probabilities over length ^ penalty, best first.
function M.check_scores(result, penalty)
  for i, output in ipairs(result.outputs) do
    local sum = 0
    for _, entry in ipairs(output.logprobs) do sum = sum + entry.logprob end
    assert(math.abs(output.score - sum / (#output.ids) ^ penalty) < 1e-3)
    assert(i == 1 or output.score <= result.outputs[i - 1].score)
  end
end

-- The logits after these ids, by a cache of their own.
function M.logits_of(ids)
  local kv <close> = M.model:cache()
  return M.model:forward(kv, ids)
end

-- The mean log-probability of new ids.
function M.mean_of(prompt, ids)
  local kv <close> = M.model:cache()
  M.model:forward(kv, prompt)
  return M.model:score(kv, ids):t():sum():item() / #ids
end

function M.near(wanted, got)
  assert(math.abs(wanted - got) < 1e-4, ("%.9g, not %.9g"):format(got, wanted))
end

function M.contains(text, what)
  return text:find(what, 1, true) ~= nil
end

-- Options of a script: each of the values must give another result.
function M.check_options(script, base, prompt, values)
  for name, list in pairs(values) do
    local results = {}
    for i, value in ipairs(list) do
      local opt = {}
      for key, other in pairs(base) do opt[key] = other end
      opt[name] = value
      local result, parts = M.run(script, "", prompt, opt), {}
      for k, output in ipairs(result.outputs) do
        parts[k] = ("%s:%s"):format(table.concat(output.ids, " "), output.score)
      end
      results[i] = table.concat(parts, "\n")
      for k = 1, i - 1 do
        assert(results[k] ~= results[i], ("%s: %s changes nothing"):format(script, name))
      end
    end
  end
end

return M
