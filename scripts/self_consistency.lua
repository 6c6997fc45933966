-- Self-consistency (Wang et al. 2023, "Self-consistency improves chain of thought reasoning in
-- language models"): draws several chains of thought, reads the answer of each, and takes the
-- answer that most of them give. A text's score is the share of texts with its answer; among equal
-- answers, and equally frequent ones, the text drawn first stands first.
local branches = require "llm.branches"

-- The last match of the pattern in a text, or its first capture there; nil: none. Numbers are
-- compared by value: "1,000" is "1000.0".
local function answer_of(text, pattern)
  local answer
  local ok, message = pcall(function()
    for match in text:gmatch(pattern) do
      match = tostring(match):match("^%s*(.-)%s*$")
      if match ~= "" then answer = match end
    end
  end)
  if not ok then
    message = message:gsub("^.-:%d+: ", "")
    error(llm.error("input", ("answer: '%s' is no Lua pattern: %s"):format(pattern, message)))
  end
  local number = answer and tonumber((answer:gsub(",(%d%d%d)%f[%D]", "%1")))
  return number and number + 0.0 or answer
end

return {
  about = "draw several texts, return one with the most frequent answer first",
  options = {
    samples = {default = 8, min = 1, help = "texts drawn"},
    answer = {default = "-?%f[%d][%d,.]*%d", help = "Lua pattern whose last match is a text's "
      .. "answer, by its first capture if it has one"},
  },
  decode = function(model, prompt, opt)
    return branches.samples(model, prompt, opt, opt.samples, function(list)
      local votes, answers = {}, {}
      for i, branch in ipairs(list) do
        local answer = answer_of(branch.text, opt.answer)
        answers[branch] = answer
        if answer then votes[answer] = (votes[answer] or 0) + 1 end
      end
      return branches.results(list, function(branch)
        return (votes[answers[branch]] or 0) / #list
      end)
    end)
  end,
}
