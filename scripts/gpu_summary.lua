-- What the files of scripts/gpu-check.sh say: the parts that ran, and the figures against what they
-- should be. Ends with status 1 if a part failed; figures that fall short are told, not failures.
local json = require "llm.json"

-- Of the bench of a shape: rows, field, the least or most it should be.
local GOALS = {
  {shape = "llama-8b-bf16", rows = 1, field = "roof", least = 0.75},
  {shape = "llama-1b-bf16", rows = 1, field = "roof", least = 0.60},
  {shape = "llama-8b-bf16", field = "prefill_peak", least = 0.70},
  {shape = "llama-8b-bf16", field = "growth", most = 1.3},
}

local function lines(path)
  local list, file = {}, io.open(path, "r")
  if not file then return list end
  for line in file:lines() do
    local ok, value = pcall(json.decode, line)
    if ok and type(value) == "table" then list[#list + 1] = value end
  end
  file:close()
  return list
end

local function put(format, ...) io.write(format:format(...), "\n") end

local function put_parts(parts)
  local failed = 0
  for _, p in ipairs(parts) do
    if p.status == "failed" then failed = failed + 1 end
    put("%-8s %4d s  %s%s", p.status, p.seconds, p.part,
      p.status == "failed" and (" (exit status %d: %s.txt)"):format(p.code, p.part) or "")
  end
  return failed
end

-- Texts of models against the reference.
local function put_texts(texts)
  local tokens, differ, worst = 0, 0, 0
  for _, t in ipairs(texts) do
    tokens, differ, worst = tokens + t.tokens, differ + t.differ, math.max(worst, t.worst or 0)
  end
  if #texts == 0 then return end
  put("\ntexts of %d models: %d tokens, %d chosen otherwise than by ref, logits differ by %.4f",
    #texts, tokens, differ, worst)
end

local function put_bench(b)
  put("\n%s on %s", b.model:gsub("^.*shape:", ""), b.device)
  put("  read %.0f GB/s, products %.0f TFLOPS", (b.bandwidth or 0) / 1e9, (b.peak or 0) / 1e12)
  for _, r in ipairs(b.runs or {}) do
    put("  %2d rows: %.3f ms a step, %.1f tokens/s, %.1f %% of the roof; prefill %.0f tokens/s, "
      .. "%.1f %% of the peak", r.rows, r.step_ms, r.decode_tps, 100 * r.roof, r.prefill_tps or 0,
      100 * (r.prefill_peak or 0))
    put("           a step: %.1f launches, %.2f waits, %.0f bytes up, %.0f down", r.launches or 0,
      r.syncs or 0, r.bytes_up or 0, r.bytes_down or 0)
  end
  if b.error then put("  ended early: %s", b.error.message or "?") end
end

-- The best of the field over the bench's runs of so many rows (nil: any).
local function value_of(benches, goal)
  local found
  for _, b in ipairs(benches) do
    if b.model:find("shape:" .. goal.shape, 1, true) then
      local ms = {}
      for _, r in ipairs(b.runs or {}) do
        ms[r.rows] = r.step_ms
        if r[goal.field] and (not goal.rows or goal.rows == r.rows) then
          found = math.max(found or 0, r[goal.field])
        end
      end
      if goal.field == "growth" and ms[1] and ms[16] then found = ms[16] / ms[1] end
    end
  end
  return found
end

local function put_goals(benches)
  put ""
  for _, goal in ipairs(GOALS) do
    local value = value_of(benches, goal)
    local name = goal.field == "growth" and "time of 16 rows over that of 1" or goal.field
      .. (goal.rows and (" at %d row"):format(goal.rows) or "")
    local bound = goal.least or goal.most
    local verdict = "not measured"
    if value then
      local reached = goal.least and value >= bound or goal.most and value <= bound
      verdict = ("%.2f, %s"):format(value, reached and "reached" or "SHORT OF IT")
    end
    put("goal: %s: %s %s %.2f: %s", goal.shape, name, goal.least and "at least" or "at most", bound,
      verdict)
  end
end

return {
  about = "what a run of scripts/gpu-check.sh found",
  common = {"version"},
  arguments = "FOLDER",
  model = false,
  main = function(_, opt)
    local folder = opt.arguments[1]
    local parts = lines(folder .. "/parts.jsonl")
    local failed = put_parts(parts)
    put_texts(lines(folder .. "/texts.jsonl"))
    local benches = lines(folder .. "/bench.jsonl")
    for _, b in ipairs(benches) do put_bench(b) end
    put_goals(benches)
    put("\n%d parts, %d failed", #parts, failed)
    return (failed > 0 or #parts == 0) and 1 or 0
  end,
}
