-- Tree of thoughts, breadth first (Yao et al. 2023, "Tree of thoughts: deliberate problem solving
-- with large language models", algorithm 1): from each of the best texts so far several thoughts
-- are drawn, all texts are judged, and the best few are kept; `depth` times, then each is drawn to
-- its end. A thought ends with the delimiter or after so many tokens. A text is worth its mean
-- log-probability, what the file `value` says, or how surely the model answers a question about it.
-- One thought of one text is `sample`.
local branches = require "llm.branches"
local new_reward = require "llm.reward"

-- The value of a text as the log-probability of `answer` after the text and `question`.
local function new_question(model, opt, n_prompt)
  local question = model:encode(opt.question, {add_special = false})
  local answer = model:encode(opt.answer, {add_special = false})
  local room = model.ctx - n_prompt - #question - #answer
  if opt.value then error(llm.error("input", "--question and --value: give one of them")) end
  if #question == 0 or #answer == 0 or room < 1 then
    error(llm.error("input", ("tree_of_thought: %d tokens of prompt, %d of question, %d of answer; "
      .. "the context holds %d"):format(n_prompt, #question, #answer, model.ctx)))
  end
  opt.max_tokens = math.min(opt.max_tokens, room)
  return function(branch)
    local kv <close> = branch.kv:fork()
    local ids = branch.finish == "eos" and {} or {branch.feed[1]} -- no end token before a question
    model:forward(kv, table.move(question, 1, #question, #ids + 1, ids), {rows = 0})
    return model:score(kv, answer):t():sum():item()
  end
end

return {
  about = "draw thoughts side by side, go on from the best",
  options = {
    breadth = {default = 2, min = 1, help = "texts kept"},
    samples = {default = 3, min = 1, help = "thoughts drawn from each"},
    depth = {default = 3, min = 0, help = "times that thoughts are drawn and judged"},
    delimiter = {type = "string", help = "text that ends a thought; default: a newline"},
    thought_tokens = {default = 32, min = 1, help = "a thought's length at most"},
    value = {type = "file", help = "Lua file that returns function(ids, text), a text's value"},
    question = {type = "string", help = "asked after a text, whose value is then the answer's"},
    answer = {default = " yes", help = "the answer that is hoped for"},
  },
  decode = function(model, prompt, opt)
    branches.check_rows(opt, opt.breadth * (opt.depth > 0 and opt.samples or 1))
    local value = opt.question and new_question(model, opt, #prompt)
      or new_reward(opt.value, opt.seed)
    local kept, n_streams = {branches.new(model, prompt, opt)}, 1
    function opt.partial() return branches.results(kept, new_reward()) end
    for _ = 1, opt.depth do
      local texts, starts = {}, {} -- each with its length before the thought, in tokens and bytes
      for _, parent in ipairs(kept) do
        for i = 1, parent.finish and 1 or opt.samples do
          n_streams = n_streams + (i > 1 and 1 or 0)
          local child = i == 1 and parent or parent:fork(n_streams)
          table.insert(texts, child)
          starts[child] = {n = parent.n, bytes = #parent.text}
        end
      end
      branches.grow(texts, opt.sampler, function(branch)
        local start = starts[branch]
        return branch.n - start.n >= opt.thought_tokens
          or branch.text:find(opt.delimiter or "\n", start.bytes + 1, true)
      end)
      branches.sort(texts, value)
      kept = table.move(texts, 1, opt.breadth, 1, {})
      for i = opt.breadth + 1, #texts do texts[i]:close() end
    end
    branches.grow(kept, opt.sampler)
    return branches.results(kept, value)
  end,
}
