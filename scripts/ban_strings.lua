-- Banned texts by rewinding (Paech 2024, antislop-sampler; Paech et al. 2025, "Antislop: a
-- comprehensive framework for identifying and eliminating repetitive patterns in language models"):
-- when a banned text is complete, goes back to the token in which it begins, masks that token there
-- and draws again. The noise of an id at a place is always the same, so a draw is that of `sample`
-- among the ids that are left. Tokens are held back while a banned text may yet begin in them.
local stop = require "llm.stop"
local text = require "llm.text"

-- The text of steps as one, and where each ends in it.
local function join(steps)
  local held, ends = "", {}
  for i, step in ipairs(steps) do held, ends[i] = held .. step.text, #held + #step.text end
  return held, ends
end

return {
  about = "sample, and never write certain texts",
  options = {
    ban = {type = "list", of = "string", split = false,
      help = "a text that must not appear (may be given several times)"},
    ignore_case = {default = false, help = "A to Z are as a to z"},
  },
  decode = function(model, prompt, opt, emit)
    local fold, banned, kv = opt.ignore_case and string.lower or tostring, {}, model:cache()
    for i, ban in ipairs(opt.ban or {}) do
      if ban == "" then error(llm.error("input", "ban: an empty text is part of every text")) end
      banned[i] = fold(ban)
    end
    local steps, n_out = {}, 0 -- the tokens held back; how many were emitted before them
    local here = {seq = llm.seq(prompt), logits = model:forward(kv, prompt), masked = {}}
    local function rewind(i) -- to the i-th step, which must choose another id
      here = steps[i] or error(llm.error("no_finite",
        ("ban_strings: all ids are masked at token %d"):format(n_out + 1)))
      table.insert(here.masked, here.id)
      for k = #steps, i, -1 do steps[k] = nil end
      kv:truncate(#prompt + n_out + i - 1)
    end
    while true do
      local row, seq = here.logits, here.seq:fork() -- what samplers remember belongs to the try
      if #here.masked > 0 then row = row:mask(here.masked) end
      if #here.masked > 0 and opt.sampler.filter(row, {seq:fork()}):max():item() == -math.huge then
        rewind(#steps)
      else
        local id = opt.sampler(row, {seq}):item()
        local is_end = model:is_eog(id)
        here.id, here.text = id, is_end and "" or fold(text.continuation(model, seq.ids)(id))
        table.insert(steps, here)
        local held, ends = join(steps)
        local first, i = stop.find(held, banned), 1
        if first then
          while ends[i] < first do i = i + 1 end
          rewind(i)
        else
          local is_over = is_end or n_out + #steps == opt.max_tokens
          local n_safe = #held - (is_over and 0 or stop.pending(held, banned))
          while ends[i] and ends[i] <= n_safe do
            local step = table.remove(steps, 1)
            n_out, i = n_out + 1, i + 1
            if emit(step.id, {logits = step.logits}) then return end
          end
          seq:push(id)
          here = {seq = seq, logits = model:forward(kv, id), masked = {}}
        end
      end
    end
  end,
}
