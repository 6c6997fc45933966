-- The options that every strategy has. `section` groups them in --help. `line`: a line of --prompts
-- may have its own. `fixed`: results depend on it, so a run that is continued has the same.

local function option(section, name, short, spec)
  spec.section, spec.name, spec.short = section, name, short
  return spec
end

-- Of one text.
local function own(section, name, short, spec)
  spec.line, spec.fixed = true, true
  return option(section, name, short, spec)
end

local common = {
  option("prompt", "model", "m", {type = "string", arg = "FILE",
    help = "GGUF file (else LLMLUA_MODEL, else the built-in model); shape:llama-1b-q4_k: random "
      .. "weights of that shape and format, for measuring"}),
  option("prompt", "prompt", "p", {type = "string", arg = "TEXT",
    help = "the text (else --file, --prompt-ids, standard input)"}),
  option("prompt", "file", "f", {type = "string", arg = "FILE",
    help = "read it from a file (- is standard input)"}),
  option("prompt", "prompt_ids", nil, {type = "list", of = "integer", least = 0, arg = "IDS",
    help = "the prompt as token ids, such as 1,2,3"}),

  own("end", "max_tokens", "n", {type = "integer", default = 256, min = 0,
    help = "at most this many new tokens (end token included; also limited by the context)"}),
  own("end", "min_tokens", nil, {type = "integer", default = 0, min = 0,
    help = "no end token before that many (adds min_new_tokens to the chain)"}),
  option("end", "ignore_eog", nil, {fixed = true, type = "boolean", default = false,
    help = "no token ends the text"}),
  option("end", "eog", nil, {fixed = true, type = "list", of = "integer", least = 0, arg = "IDS",
    help = "the ids that end the text, instead of the file's"}),
  own("end", "stop", nil, {type = "list", of = "string", split = false, arg = "TEXT",
    help = "end before this text (may be given several times)"}),
  option("end", "stop_rule", nil, {fixed = true, type = "file",
    help = "Lua file that returns function(ids, text), true to stop"}),
  option("end", "max_seconds", nil, {type = "number", default = 600, above = 0, line = true,
    help = "seconds a text may take, not counting the wait for others"}),

  own("sampling", "sampler", nil, {type = "chain", arg = "CHAIN",
    help = "samplers in order: \"top_k=40, min_p(p=0.05), temperature=0.8\""}),
  own("sampling", "temperature", nil, {type = "number", min = 0, help = "0 is greedy"}),
  own("sampling", "top_k", nil, {type = "integer", min = 0, help = "0 is off"}),
  own("sampling", "top_p", nil, {type = "number", min = 0, max = 1, help = "1 is off"}),
  own("sampling", "min_p", nil, {type = "number", min = 0, max = 1, help = "0 is off"}),
  own("sampling", "repetition_penalty", nil, {type = "number", above = 0, help = "1 is off"}),
  own("sampling", "presence_penalty", nil, {type = "number", help = "0 is off"}),
  own("sampling", "frequency_penalty", nil, {type = "number", help = "0 is off"}),
  own("sampling", "seed", nil, {type = "integer", default = 0, help = "of all randomness"}),

  option("engine", "device", nil, {type = "device", default = "auto",
    help = "where to compute: cpu, cuda (cuda:1 is the second GPU), ref, which is slow and exact, "
      .. "or auto: as LLMLUA_DEVICE says, else cuda where a GPU answers, else cpu"}),
  option("engine", "cuda_lib", nil, {type = "string", arg = "FILE",
    help = "the plug-in for GPUs (default: libllmlua-cuda.so beside the program)"}),
  option("engine", "invariant", nil, {fixed = true, type = "boolean", default = false,
    help = "on a GPU: the same bits alone and in any batch, as a CPU always gives; slower"}),
  option("engine", "gpu_layers", nil, {fixed = true, type = "integer", min = 0,
    help = "a model that does not fit on the GPU: only its last N layers and the head are there, "
      .. "the CPU computes the others"}),
  option("engine", "threads", nil, {type = "integer", min = 1, max = 1024,
    help = "at most the cores this process may use, which is the default"}),
  option("engine", "ctx", nil, {fixed = true, type = "integer", min = 1,
    help = "positions a sequence may have (default: as trained, at most 4096)"}),
  option("engine", "kv", nil, {fixed = true, type = "string", choices = {"f32", "f16", "q8_0"},
    help = "type of the key/value cache (default: the device's)"}),
  option("engine", "pages", nil, {type = "integer", min = 1,
    help = "memory for keys and values, in pages of 32 positions"}),
  option("engine", "swap_pages", nil, {type = "integer", min = 0,
    help = "on a GPU: as many pages of sequences that are set aside may be copied to the host's "
      .. "memory, others are recomputed (default: pages, in half of what is free)"}),
  option("engine", "max_rows", nil, {type = "integer", default = 1024, min = 1,
    help = "rows of logits one pass may be asked for"}),
  option("engine", "weight_cache", nil, {type = "string", arg = "FOLDER",
    help = "where weights made ready are kept for the next start; off: nowhere (default: "
      .. "LLMLUA_WEIGHT_CACHE, else llmlua/weights in the user's cache folder)"}),
  option("engine", "f16_as_bf16", nil, {fixed = true, type = "boolean", default = false,
    help = "round F16 weights to BF16 (cpu only): faster where AVX512_BF16 is, less exact"}),

  option("batch", "prompts", nil, {type = "string", arg = "FILE",
    help = "a prompt a line: JSON objects or plain text (- is standard input)"}),
  option("batch", "prompts_format", nil, {type = "string", default = "auto",
    choices = {"auto", "jsonl", "text"}, help = "auto: by name, else by the first character"}),
  option("batch", "out", nil, {type = "string", arg = "FILE",
    help = "a line of JSON for each (default: standard output); the same command continues it"}),
  option("batch", "jobs", nil, {type = "integer", default = 16, min = 1, max = 4096,
    help = "at most so many side by side"}),
  option("batch", "ordered", nil, {type = "boolean", default = false,
    help = "results in the order of the prompts, not of completion"}),
  option("batch", "overwrite", nil, {type = "boolean", default = false,
    help = "drop what --out holds and begin anew"}),
  option("batch", "retry_errors", nil, {type = "boolean", default = false,
    help = "drop the failed lines of --out and try them again"}),
  option("batch", "shard", nil, {type = "string", arg = "I/N",
    help = "every N-th prompt from the I-th on (default: the rank under srun and mpirun); "
      .. "--out x.jsonl becomes x.I-of-N.jsonl"}),

  own("output", "logprobs", nil, {type = "integer", min = 0,
    help = "log-probability of each token, and of the N likeliest (with --json)"}),
  own("output", "processed_logprobs", nil, {type = "boolean", default = false,
    help = "with --logprobs: those after the sampler chain too"}),
  option("output", "explain", nil, {type = "boolean", default = false,
    help = "what each sampler kept, at each step, on standard error"}),
  option("output", "json", nil, {type = "boolean", default = false,
    help = "one line of JSON instead of the text"}),
  option("output", "quiet", nil, {type = "boolean", default = false,
    help = "no progress, warnings or figures on standard error"}),
  option("output", "verbose", nil, {type = "boolean", default = false,
    help = "describe model and device first"}),
  option("output", "version", nil, {type = "boolean", default = false, help = "print the version"}),
  option("output", "help", "h", {type = "boolean", default = false, help = "print this"}),
}

return common
