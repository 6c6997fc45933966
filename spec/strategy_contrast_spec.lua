-- The strategies that set two distributions against each other, held against the same algorithm in
-- plain code: every row computed anew from the whole text, all arithmetic in Lua.
local h = require "spec.helper"
local jobs = require "spec.jobs"
local s = require "spec.strategies"

local PROMPT = s.prompt
local concat, refused = s.concat, s.refused

-- Logits after ids as a list, that of id v at v + 1.
local function row_after(model, ids)
  local kv <close> = model:cache()
  return model:forward(kv, ids):tolist()
end

local function softmax(row)
  local most, sum, p = math.max(table.unpack(row)), 0, {}
  for i, x in ipairs(row) do
    p[i] = math.exp(x - most)
    sum = sum + p[i]
  end
  for i in ipairs(p) do p[i] = p[i] / sum end
  return p
end

local function log_softmax(row)
  local out = softmax(row)
  for i, p in ipairs(out) do out[i] = math.log(p) end
  return out
end

-- The id with the largest score(i) of those with keep(i).
local function best_of(n, score, keep)
  local best
  for i = 1, n do
    if not keep or keep(i) then
      if not best or score(i) > score(best) then best = i end
    end
  end
  return best - 1
end

-- n ids, each chosen by pick(ids before); fewer at an end token.
local function make(model, n, pick)
  local ids = {}
  repeat ids[#ids + 1] = pick(ids) until #ids == n or model:is_eog(ids[#ids])
  return ids
end

local function is_plausible(p, share)
  local most = math.max(table.unpack(p))
  return function(i) return p[i] >= share * most end
end

local function ids_of(...)
  local result = jobs.run(...)
  assert(not result.error, result.error and result.error.message)
  return result.ids, result
end

-- Each sentence holds for the built-in model on the cpu device and a small one on ref.
local models = {
  {name = "on the built-in model", open = function() return h.builtin() end},
  {name = "on a tiny model", open = function() return h.tiny "qwen2-f32" end},
}

for _, case in ipairs(models) do
  describe("a contrast " .. case.name, function()
    local model, prompt
    setup(function()
      model = case.open()
      prompt = model:encode(PROMPT)
    end)
    teardown(function() model:close() end)

    local function same_as_greedy(...)
      assert.same(h.greedy(model, prompt, 16), (ids_of(model, ...)))
    end

    it("that is off is greedy", function()
      same_as_greedy("cfg", "-n 16 --guidance-scale 1")
      same_as_greedy("cfg", "-n 16 --guidance-scale 1 --negative-prompt evil")
      same_as_greedy("cad", "-n 16")
      same_as_greedy("dola", "-n 16 --plausibility 1")
      same_as_greedy("dola", "-n 16 --plausibility 1 --bucket low")
      same_as_greedy("contrastive_search", "-n 16 --alpha 0")
      same_as_greedy("contrastive_search", "-n 16 --k 1")
      local amateur = {amateur = model}
      same_as_greedy("contrastive_decoding", "-n 16 --strength 0", nil, amateur)
      same_as_greedy("contrastive_decoding", "-n 16 --plausibility 1", nil, amateur)
      same_as_greedy("contrastive_decoding", "-n 16 --strength 3", nil, amateur)
    end)

    it("draws what sample draws where it is off and told to draw", function()
      local plain = ids_of(model, "sample", "-n 16 --seed 5 --temperature 0.9")
      local asked = "-n 16 --seed 5 --temperature 0.9 --sample "
      assert.same(plain, (ids_of(model, "cfg", asked .. "--guidance-scale 1")))
      assert.same(plain, (ids_of(model, "cad", asked)))
      assert.same(plain, (ids_of(model, "contrastive_decoding", asked
        .. "--strength 0 --plausibility 0", nil, {amateur = model})))
      local drawn = ids_of(model, "dola", asked)
      assert.same(drawn, (ids_of(model, "dola", asked)))
      assert.not_same(drawn, (ids_of(model, "dola", "-n 16 --seed 6 --temperature 0.9 --sample")))
      assert.not_same(drawn, (ids_of(model, "dola", "-n 16 --seed 5 --temperature 0.9")))
    end)

    it("cfg moves log-probabilities away from those after the negative prompt", function()
      for _, asked in ipairs {{1.5}, {3, "evil things"}, {0.5, "evil things"}} do
        local scale, text = table.unpack(asked)
        local negative = text and model:encode(text) or {prompt[#prompt]}
        local wanted = make(model, 12, function(ids)
          local c = log_softmax(row_after(model, concat(prompt, ids)))
          local u = log_softmax(row_after(model, concat(negative, ids)))
          return best_of(#c, function(i) return u[i] + scale * (c[i] - u[i]) end)
        end)
        local arguments = "-n 12 --guidance-scale " .. scale
        if text then arguments = arguments .. " --negative-prompt " .. text:gsub(" ", "%%20") end
        assert.same(wanted, (ids_of(model, "cfg", arguments)))
        if text then
          arguments = ("-n 12 --guidance-scale %s --negative-prompt-ids %s"):format(scale,
            table.concat(negative, ","))
          assert.same(wanted, (ids_of(model, "cfg", arguments)))
        end
      end
    end)

    it("cad weighs what the context changes", function()
      local bos = prompt[1] == model.bos and {model.bos} or {}
      local context = model:encode("The king spake. ", {add_special = false})
      local whole = concat(bos, context, table.move(prompt, #bos + 1, #prompt, 1, {}))
      for _, alpha in ipairs {0, 0.5, 2} do
        local wanted = make(model, 12, function(ids)
          local c = row_after(model, concat(whole, ids))
          local u = row_after(model, concat(prompt, ids))
          return best_of(#c, function(i) return (1 + alpha) * c[i] - alpha * u[i] end)
        end)
        local arguments = "-n 12 --context The%20king%20spake.%20 --alpha " .. alpha
        assert.same(wanted, (ids_of(model, "cad", arguments)))
        if alpha == 0 then assert.same(h.greedy(model, whole, 12), wanted) end
      end
    end)

    it("contrastive search takes the candidate least like what is there", function()
      local top = model.n_layers
      -- Cosine of the last hidden state and the one most like it before.
      local function likeness(ids)
        local kv <close> = model:cache()
        local _, hidden = model:forward(kv, ids, {hidden = {top}})
        local rows, most = hidden[top]:lists(), -math.huge
        local function dot(a, b)
          local sum = 0
          for i = 1, #a do sum = sum + a[i] * b[i] end
          return sum
        end
        local last = rows[#rows]
        for i = 1, #rows - 1 do
          most = math.max(most, dot(rows[i], last) / math.sqrt(dot(rows[i], rows[i])
            * dot(last, last)))
        end
        return most
      end
      for _, asked in ipairs {{4, 0.6}, {6, 0.4}, {3, 1}} do
        local k, alpha = table.unpack(asked)
        local wanted = make(model, 10, function(ids)
          local p, order = softmax(row_after(model, concat(prompt, ids))), {}
          for i = 1, #p do order[i] = i end
          table.sort(order, function(a, b) return p[a] > p[b] end)
          local best, most
          for i = 1, k do
            local value = (1 - alpha) * p[order[i]]
              - alpha * likeness(concat(prompt, ids, {order[i] - 1}))
            if not best or value > most then best, most = order[i] - 1, value end
          end
          return best
        end)
        assert.same(wanted, (ids_of(model, "contrastive_search",
          ("-n 10 --k %d --alpha %s"):format(k, alpha))))
      end
    end)

    it("dola subtracts the layer that differs most", function()
      local half, n = model.n_layers // 2, model.n_layers
      local high, low = {}, {}
      for layer = half, n - 1, 2 do high[#high + 1] = layer end
      for layer = math.max(0, math.min(2, half - 1)), math.max(0, half - 1), 2 do
        low[#low + 1] = layer
      end
      for _, asked in ipairs {{high, 0.1, ""}, {low, 0.1, "--bucket low"},
        {{n - 1, 0}, 0.02, ("--layers %d,0 --plausibility 0.02"):format(n - 1)},
        {{2, 1}, 0.2, "--layers 2,1 --plausibility 0.2"}} do
        local layers, share, arguments = table.unpack(asked)
        local wanted = make(model, 10, function(ids)
          local kv <close> = model:cache()
          local final, hidden = model:forward(kv, concat(prompt, ids), {hidden = layers})
          local p, early, most = softmax(final:tolist()), nil, -1
          for _, layer in ipairs(layers) do
            local state = hidden[layer]:row(hidden[layer].n_rows)
            local q, sum = softmax(model:logits(state):tolist()), 0
            for i = 1, #p do
              local m = (p[i] + q[i]) / 2
              if p[i] > 0 then sum = sum + p[i] * math.log(p[i] / m) / 2 end
              if q[i] > 0 then sum = sum + q[i] * math.log(q[i] / m) / 2 end
            end
            if sum > most then early, most = q, sum end
          end
          return best_of(#p, function(i) return math.log(p[i] / early[i]) end,
            is_plausible(p, share))
        end)
        assert.same(wanted, (ids_of(model, "dola", "-n 10 " .. arguments)))
      end
    end)

    it("passes the chain what it has made", function()
      local amateur = {amateur = model}
      for _, name in ipairs {"cfg", "cad", "dola", "contrastive_search", "contrastive_decoding"} do
        local plain = ids_of(model, name, "-n 24 --min-tokens 24", nil, amateur)
        assert.equal(24, #plain)
        assert.not_same(plain, (ids_of(model, name, "-n 24 --min-tokens 24 --repetition-penalty 4",
          nil, amateur)))
      end
    end)

    it("scores with the model's own log-probabilities", function()
      for _, name in ipairs {"cfg", "cad", "dola", "contrastive_search", "contrastive_decoding"} do
        local ids, result = ids_of(model, name, "-n 6", nil, {amateur = model})
        local sum = 0
        for i, id in ipairs(ids) do
          local before = table.move(ids, 1, i - 1, 1, {})
          sum = sum + log_softmax(row_after(model, concat(prompt, before)))[id + 1]
        end
        assert(math.abs(sum - result.score) < 1e-3, name)
      end
    end)

    it("works for one token, and up to the end of the context", function()
      local long = {}
      for i = 1, model.ctx - 2 do long[i] = prompt[1 + i % (#prompt - 1)] end
      for _, name in ipairs {"cfg", "dola", "contrastive_search", "contrastive_decoding", "cad"} do
        local values = {amateur = model}
        local one, all = ids_of(model, name, "-n 1", nil, values)
        assert.equal(1, #one)
        assert.equal(all.finish, model:is_eog(one[1]) and "eos" or "length")
        all = ids_of(model, name, "-n 99 --min-tokens 99", long, values)
        assert.equal(3, #all, name)
        assert.equal(1, #ids_of(model, name, "-n 1", {prompt[1]}, values))
      end
    end)
  end)
end

describe("contrastive decoding", function()
  local expert, amateur, prompt
  setup(function()
    expert, amateur = h.tiny "llama-f32", h.tiny "llama-llama3"
    prompt = expert:encode(PROMPT)
  end)
  teardown(function()
    expert:close()
    amateur:close()
  end)

  it("subtracts what the amateur thinks, among plausible ids", function()
    for _, asked in ipairs {{0.5, 0.1}, {4, 0.1}, {4, 0.5}, {0.5, 0}} do
      local strength, share = table.unpack(asked)
      local wanted = make(expert, 16, function(ids)
        local e = row_after(expert, concat(prompt, ids))
        local a = row_after(amateur, concat(prompt, ids))
        return best_of(#e, function(i) return (1 + strength) * e[i] - strength * a[i] end,
          is_plausible(softmax(e), share))
      end)
      assert.same(wanted, (ids_of(expert, "contrastive_decoding",
        ("-n 16 --strength %s --plausibility %s"):format(strength, share), nil,
        {amateur = amateur})))
    end
  end)

  it("refuses an amateur with other tokens", function()
    refused("no amateur", expert, "contrastive_decoding", "-n 2")
    local larger <close> = h.tiny "llama256-q4_k"
    refused("the amateur's vocabulary has 384 tokens, the model's 320", expert,
      "contrastive_decoding", "-n 2", nil, {amateur = larger})
    local other <close> = h.tiny "gemma3-f32"
    refused("the amateur has other tokens", larger, "contrastive_decoding", "-n 2", nil,
      {amateur = other})
  end)
end)

describe("a contrast whose other text is longer", function()
  it("ends by length where that one fills the context", function()
    local small <close> = h.builtin {ctx = 24, eog = {}}
    for name, arguments in pairs {cfg = {negative_prompt = ("the king "):rep(6)},
      cad = {context = ("the king "):rep(6)}} do
      local result = jobs.run(small, name, "-n 100", "And", arguments)
      assert.is_nil(result.error)
      assert.equal("length", result.finish)
      assert(#result.ids > 0 and #result.ids < 20)
    end
  end)
end)

describe("a contrast", function()
  local model
  setup(function() model = h.builtin() end)
  teardown(function() model:close() end)

  it("refuses what it cannot do, with both numbers", function()
    local context = ("word%20"):rep(600)
    refused("context and prompt too long: ", model, "cad", "--context " .. context)
    refused(", the context holds 512", model, "cad", "--context " .. context)
    refused("layer 4 is outside 0 … 3", model, "dola", "--layers 1,4")
    refused("layer -1 is outside 0 … 3", model, "dola", "--layers -1")
    refused("no layers", model, "dola", "", nil, {layers = {}})
  end)

  it("takes an empty negative prompt for BOS", function()
    assert.same((ids_of(model, "cfg", "-n 8 --negative-prompt-ids " .. model.bos)),
      (ids_of(model, "cfg", "-n 8", nil, {negative_prompt = ""})))
  end)

  it("contrastive search reads a prompt of more rows than a pass may give", function()
    local asked = "-n 8 --k 4 "
    local narrow <close> = h.builtin {max_rows = 4}
    local text = "In the beginning God created the heaven and the earth."
    assert.same((ids_of(model, "contrastive_search", asked, text)),
      (ids_of(narrow, "contrastive_search", asked, text)))
  end)

  it("contrastive search never takes what the chain has cut", function()
    assert.same(h.greedy(model, model:encode(PROMPT), 8),
      (ids_of(model, "contrastive_search", "-n 8 --k 4 --alpha 1 --top-k 1")))
  end)
end)
