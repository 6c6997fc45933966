-- What a run says on standard error at its end, in words.

local json = require "llm.json"
local sys = require "llm.sys"

local report = {}

local function known(x)
  return x and x ~= json.null
end

-- "first token after 35 ms, prefill 12 tokens at 340.1 tokens/s, …"
function report.figures(result)
  local t, parts = result.timings, {}
  local function add(format, ...) parts[#parts + 1] = format:format(...) end
  if known(t.load_s) then add("loaded in %.0f ms", 1000 * t.load_s) end
  if known(t.ttft_s) then add("first token after %.0f ms", 1000 * t.ttft_s) end
  if known(t.prefill_tps) then
    add("prefill %d tokens at %.1f tokens/s", result.counts.prompt, t.prefill_tps)
  end
  if known(t.decode_tps) then
    add("decode %d tokens at %.1f tokens/s", result.counts.output, t.decode_tps)
  else
    add("decode %d tokens", result.counts.output)
  end
  if known(t.passes) then add("%d passes", t.passes) end
  add("peak memory %.0f MB", sys.peak_rss() / 1e6)
  return table.concat(parts, ", ")
end

return report
