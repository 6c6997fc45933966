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
      ["llm.batch"] = "lua/llm/batch.lua",
      ["llm.blame"] = "lua/llm/blame.lua",
      ["llm.branches"] = "lua/llm/branches.lua",
      ["llm.breakers"] = "lua/llm/breakers.lua",
      ["llm.chain"] = "lua/llm/chain.lua",
      ["llm.chain_text"] = "lua/llm/chain_text.lua",
      ["llm.check"] = "lua/llm/check.lua",
      ["llm.coin"] = "lua/llm/coin.lua",
      ["llm.common"] = "lua/llm/common.lua",
      ["llm.coroutines"] = "lua/llm/coroutines.lua",
      ["llm.ending"] = "lua/llm/ending.lua",
      ["llm.fail"] = "lua/llm/fail.lua",
      ["llm.feedback"] = "lua/llm/feedback.lua",
      ["llm.greenlist"] = "lua/llm/greenlist.lua",
      ["llm.guarded"] = "lua/llm/guarded.lua",
      ["llm.history"] = "lua/llm/history.lua",
      ["llm.host"] = "lua/llm/host.lua",
      ["llm.job"] = "lua/llm/job.lua",
      ["llm.jobs"] = "lua/llm/jobs.lua",
      ["llm.json"] = "lua/llm/json.lua",
      ["llm.json_strict"] = "lua/llm/json_strict.lua",
      ["llm.limited"] = "lua/llm/limited.lua",
      ["llm.lines"] = "lua/llm/lines.lua",
      ["llm.loading"] = "lua/llm/loading.lua",
      ["llm.logprobs"] = "lua/llm/logprobs.lua",
      ["llm.match"] = "lua/llm/match.lua",
      ["llm.meta"] = "lua/llm/meta.lua",
      ["llm.metrics"] = "lua/llm/metrics.lua",
      ["llm.options"] = "lua/llm/options.lua",
      ["llm.output"] = "lua/llm/output.lua",
      ["llm.phrases"] = "lua/llm/phrases.lua",
      ["llm.pool"] = "lua/llm/pool.lua",
      ["llm.progress"] = "lua/llm/progress.lua",
      ["llm.prompt"] = "lua/llm/prompt.lua",
      ["llm.ragged"] = "lua/llm/ragged.lua",
      ["llm.report"] = "lua/llm/report.lua",
      ["llm.results"] = "lua/llm/results.lua",
      ["llm.reward"] = "lua/llm/reward.lua",
      ["llm.run"] = "lua/llm/run.lua",
      ["llm.sandbox"] = "lua/llm/sandbox.lua",
      ["llm.scheduler"] = "lua/llm/scheduler.lua",
      ["llm.scripts"] = "lua/llm/scripts.lua",
      ["llm.single"] = "lua/llm/single.lua",
      ["llm.speculation"] = "lua/llm/speculation.lua",
      ["llm.stop"] = "lua/llm/stop.lua",
      ["llm.stream"] = "lua/llm/stream.lua",
      ["llm.text"] = "lua/llm/text.lua",
      ["llm.words"] = "lua/llm/words.lua",
    },
  },
}
