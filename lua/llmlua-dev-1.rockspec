-- The module llm for a stock Lua 5.4, from a checkout: `luarocks make lua/llmlua-dev-1.rockspec`.
rockspec_format = "3.0"
package = "llmlua"
version = "dev-1"
source = {url = "git+file://."}
description = {
  summary = "A scriptable inference runtime for large language models",
  detailed = "Models, caches, logits and tensors as Lua values: a decoding algorithm is a short script.",
  license = "MIT",
}
supported_platforms = {"linux"}
dependencies = {"lua ~> 5.4", "argparse", "dkjson"}
build = {
  type = "command",
  build_command = "cmake -S . -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build --target llm",
  install = {
    lib = {llm = "build/llm.so"},
    lua = {
      ["llm.chain"] = "lua/llm/chain.lua",
      ["llm.check"] = "lua/llm/check.lua",
      ["llm.common"] = "lua/llm/common.lua",
      ["llm.fail"] = "lua/llm/fail.lua",
      ["llm.guarded"] = "lua/llm/guarded.lua",
      ["llm.history"] = "lua/llm/history.lua",
      ["llm.host"] = "lua/llm/host.lua",
      ["llm.json"] = "lua/llm/json.lua",
      ["llm.logprobs"] = "lua/llm/logprobs.lua",
      ["llm.meta"] = "lua/llm/meta.lua",
      ["llm.options"] = "lua/llm/options.lua",
      ["llm.output"] = "lua/llm/output.lua",
      ["llm.pool"] = "lua/llm/pool.lua",
      ["llm.report"] = "lua/llm/report.lua",
      ["llm.run"] = "lua/llm/run.lua",
      ["llm.sandbox"] = "lua/llm/sandbox.lua",
      ["llm.scripts"] = "lua/llm/scripts.lua",
      ["llm.stop"] = "lua/llm/stop.lua",
      ["llm.stream"] = "lua/llm/stream.lua",
      ["llm.text"] = "lua/llm/text.lua",
    },
  },
}
