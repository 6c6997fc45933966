-- What a run says on standard error at its end, in words.

local chain = require "llm.chain"
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

local function megabytes(n)
  return ("%.1f MB"):format(n / 1e6)
end

-- "memory on cuda: layers 3 … 4, head, weights 1.2 MB, pages 0.1 MB each, scratch 3.4 MB"
local function part_line(part, is_last)
  local what = ("layers %d … %d"):format(part.first_layer, part.last_layer)
  if is_last then what = part.last_layer < part.first_layer and "the head" or what .. ", head" end
  return ("memory on %s: %s, weights %s, pages %s each, scratch %s"):format(part.device, what,
    megabytes(part.packed_bytes), megabytes(part.page_bytes), megabytes(part.scratch_bytes))
end

-- What the model took, for --verbose. result: of the one text that was made; nil: none or many.
function report.memory(model, result)
  local m = model:memory()
  local lines = {
    ("memory: weights %s packed, %s mapped; KV at most %d of %d pages used, %s each (%s); "
      .. "scratch %s"):format(megabytes(m.packed_bytes), megabytes(m.mapped_bytes), m.pages_most,
        model.n_pages, megabytes(model.page_bytes), model.kv, megabytes(m.scratch_bytes)),
    ("load: hash %.3f s, weights from %s %.3f s, all %.3f s")
      :format(m.hash_s, m.weights_from, m.weights_s, model.load_s),
  }
  local first = result and result.timings.ttft_s
  if known(first) then lines[2] = ("%s, first token after %.3f s"):format(lines[2], first) end
  if m.note then lines[3] = "weight cache: " .. m.note end
  for i, part in ipairs(m.parts or {}) do
    table.insert(lines, i + 1, part_line(part, i == #m.parts))
  end
  return table.concat(lines, "\n")
end

-- What hears from each sampler (chain.build's tell) with --explain, and writes a line each:
-- "step 3: top_p kept 37 of 49152, mass 0.9004". what: text before it, of one of many prompts.
function report.explainer(what)
  what = type(what) == "string" and what or ""
  return function(record)
    local row = record.row > 1 and (", row %d"):format(record.row) or ""
    io.stderr:write(what, "step ", record.step or "?", row, ": ", chain.explain_line(record), "\n")
  end
end

return report
