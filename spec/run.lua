-- Runs busted inside this program: `llmlua spec/run.lua [SPEC.lua …] [busted options]`, from the
-- root of the repository. Without a file: every spec/*_spec.lua.
package.path = "./?.lua;./lua/?.lua;" .. package.path
local named = false
for _, value in ipairs(arg) do
  named = named or value:find("_spec%.lua$") ~= nil
end
if not named then
  arg[#arg + 1] = "--pattern=_spec%.lua$"
  arg[#arg + 1] = "spec"
end
require "busted.runner" {standalone = false}
