-- Token healing (Lundberg 2023, "The art of prompt design: prompt boundaries and token healing"):
-- where a prompt ends may split a token that the model would have used. The last tokens of the
-- prompt are taken back, and the first new ones are those that begin with the bytes taken back, or
-- that these begin with. The text that is emitted leaves those bytes out; the tokens count.

-- How many of the last tokens are taken back: at most n, not the first, none that is not text.
local function count_healed(model, prompt, n)
  local healed = 0
  while healed < math.min(n, #prompt - 1) do
    local id = {prompt[#prompt - healed]}
    if model:decode(id, {render_special = false}) == "" and model:decode(id) ~= "" then break end
    healed = healed + 1
  end
  return healed
end

return {
  about = "heal the border between prompt and text, then greedy or sample",
  options = {
    tokens = {default = 1, min = 0, help = "tokens of the prompt taken back"},
    sample = {default = false, help = "draw instead of taking the likeliest"},
  },
  decode = function(model, prompt, opt, emit)
    local n_kept, bytes = #prompt - count_healed(model, prompt, opt.tokens), ""
    for i = n_kept + 1, #prompt do bytes = bytes .. model:token(prompt[i]) end
    local head = table.move(prompt, 1, n_kept, 1, {})
    local kv, seq = model:cache(), llm.seq(head)
    local logits = model:forward(kv, head)
    while true do
      local allowed = bytes == "" and logits or logits + model:prefix_mask(bytes)
      local id = opt.sample and opt.sampler(allowed, {seq})
        or opt.sampler.filter(allowed, {seq}):argmax()
      local skip = bytes ~= "" and math.min(#bytes, #model:token(id)) or 0
      bytes = bytes:sub(skip + 1)
      seq:push(id)
      if emit(id, {logits = logits, skip = skip}) then return end
      logits = model:forward(kv, id)
    end
  end,
}
