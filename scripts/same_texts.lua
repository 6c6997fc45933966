-- Greedy texts of a device against the reference: step by step, both fed what the reference chose.
-- Where they choose differently the reference's margin tells whether that is noise. The models are
-- files, or "builtin".
local json = require "llm.json"

local ORDER = {"model", "device", "tokens", "differ", "worst", "margin", "ok"}
local PROMPTS = {{1, 17, 4, 200, 31, 8, 90, 3, 55, 12}, {9}, {2, 2, 2, 7, 7, 40, 41, 42}}

local function load(path, options)
  local model, message = llm.load(path ~= "builtin" and path or nil, options)
  return model or error(llm.error("input", message))
end

-- The logits as a list, and the best two of it: id, value, second value.
local function best(logits)
  local scores, ids = logits:topk(2)
  local list = scores:tolist()
  list = type(list[1]) == "table" and list[1] or list
  local first = ids:tolist()
  first = type(first[1]) == "table" and first[1] or first
  return first[1], list[1], list[2]
end

local function ids_of(model, prompt)
  local ids = {}
  for i, id in ipairs(prompt) do ids[i] = id % model.vocab_size end
  return ids
end

-- Adds to r how one text went.
local function compare(ref, other, prompt, n_tokens, r)
  local a <close> = ref:cache()
  local b <close> = other:cache()
  local ids = ids_of(ref, prompt)
  local x, y = ref:forward(a, ids), other:forward(b, ids)
  for _ = 1, n_tokens do
    local id, first, second = best(x)
    local theirs = best(y)
    local difference = 0
    local xs, ys = x:tolist(), y:tolist()
    xs, ys = type(xs[1]) == "table" and xs[1] or xs, type(ys[1]) == "table" and ys[1] or ys
    for i = 1, #xs do
      local d = math.abs(xs[i] - ys[i])
      if d > difference or d ~= d then difference = d end
    end
    r.tokens, r.worst = r.tokens + 1, math.max(r.worst, difference)
    if theirs ~= id then
      r.differ = r.differ + 1
      r.margin = math.max(r.margin, first - second)
    end
    x, y = ref:forward(a, id), other:forward(b, id)
  end
end

return {
  about = "greedy texts of a device against the reference",
  common = {"engine", "json", "quiet", "version"},
  arguments = "MODEL…",
  model = false,
  options = {
    tokens = {default = 24, min = 1, help = "new tokens of each text"},
    noise = {default = 0.1, min = 0, help = "logits closer than that may change places"},
    worst = {default = 1.0, min = 0, help = "no logit may differ more"},
  },
  main = function(_, opt)
    local failed = 0
    for _, path in ipairs(opt.arguments) do
      local options = {weight_cache = "off", ctx = 128, pages = 64}
      options.device = "ref"
      local ref <close> = load(path, options)
      options.device, options.cuda_lib = opt.device, opt.cuda_lib
      local other <close> = load(path, options)
      local r = {model = path, device = other.device_info, tokens = 0, differ = 0, worst = 0,
        margin = 0}
      for _, prompt in ipairs(PROMPTS) do compare(ref, other, prompt, opt.tokens, r) end
      r.ok = r.margin <= opt.noise and r.worst <= opt.worst -- false too where a logit is NaN
      if not r.ok then failed = failed + 1 end
      if opt.json then io.write(json.encode(r, ORDER), "\n")
      else
        io.write(("%-9s %4d tokens, %d chosen otherwise (margin %.4f), logits differ by %.4f: %s\n")
          :format(r.ok and "same" or "DIFFERENT", r.tokens, r.differ, r.margin, r.worst, path))
      end
      io.stdout:flush()
    end
    return failed > 0 and 1 or 0
  end,
}
