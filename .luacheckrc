std = "lua54"
max_line_length = 100
read_globals = {"llm"}
exclude_files = {"build*"}
files["lua/llm/host.lua"] = {globals = {"arg"}}
files["lua/llm/meta.lua"] = {ignore = {"1", "2", "631"}} -- declarations only
files["scripts"] = {unused_args = false}
files["samplers"] = {unused_args = false}
files["spec"] = {std = "+busted", globals = {"arg"}}
