-- Golden values of the real models (scripts/fetch_models.sh): tokenizer and logits, on the
-- reference device in f32.
local h = require "spec.helper"

local function hex(bytes)
  return (bytes:gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

for name in pairs {smollm2 = true, gemma3 = true} do
  describe(name, function()
    local path, model = h.real_path(name), nil
    local with = h.with(path, it, pending)
    setup(function() model = path and assert(h.load(path, {device = "ref"})) end)
    teardown(function() if model then model:close() end end)

    with("encodes as the reference", function()
      for case in h.lines("reference/tokenizer/" .. name .. ".jsonl") do
        local opts = {add_special = case.add_special, parse_special = case.parse_special}
        assert.same(case.ids, model:encode(case.text, opts))
      end
    end)

    with("decodes as the reference", function()
      for case in h.lines("reference/tokenizer/" .. name .. "_decode.jsonl") do
        local bytes = model:decode(case.ids, {render_special = case.render_special})
        assert.equal(case.text_bytes_hex, hex(bytes))
      end
    end)

    with("gives the reference logits and negative log-likelihoods", function()
      for case in h.lines("reference/logits/" .. name .. ".jsonl") do
        local kv <close> = model:cache()
        local ids = case.ids
        local nll = {}
        if #ids > 1 then
          model:forward(kv, ids[1])
          nll = model:score(kv, table.move(ids, 2, #ids, 1, {})):tolist()
          kv:truncate(#ids - 1)
        end
        local mean = 0
        for i, value in ipairs(case.nll) do
          local figures = ("nll %d: %g, expected %g"):format(i, -nll[i], value)
          assert(math.abs(value + nll[i]) <= 5e-4, figures)
          mean = mean - nll[i] / #case.nll
        end
        if case.mean_nll then assert(math.abs(mean - case.mean_nll) <= 5e-5) end
        local logits = model:forward(kv, ids[#ids])
        assert(math.abs(logits:logsumexp():item() - case.last.logsumexp) <= 5e-4)
        local scores, top = logits:topk(20)
        scores, top = scores:tolist(), top:tolist()
        for i, pair in ipairs(case.last.top) do
          assert.equal(pair[1], top[i])
          assert(math.abs(pair[2] - scores[i]) <= 5e-4)
        end
      end
    end)
  end)
end

