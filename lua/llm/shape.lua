-- Models of a known shape that hold no weights: for measuring speed, and for reading off what a
-- step costs. The file has a header, norms of ones, a vocabulary of bytes padded to the real size,
-- and for the matrices a hole: it takes no space where the file system knows holes, and is removed
-- as soon as it is mapped.
local llm = require "llm"

local shape = {}

-- All of the architecture llama. head: its matrix is no copy of the embedding.
local SHAPES = {
  tiny = {vocab = 512, width = 256, layers = 2, heads = 4, heads_kv = 2, head_dim = 64,
    hidden = 512, base = 1e4, context = 512},
  smollm2 = {vocab = 49152, width = 576, layers = 30, heads = 9, heads_kv = 3, head_dim = 64,
    hidden = 1536, base = 1e5, context = 8192},
  ["llama-1b"] = {vocab = 128256, width = 2048, layers = 16, heads = 32, heads_kv = 8,
    head_dim = 64, hidden = 8192, base = 5e5, context = 131072},
  ["llama-8b"] = {vocab = 128256, width = 4096, layers = 32, heads = 32, heads_kv = 8,
    head_dim = 128, hidden = 14336, base = 5e5, context = 131072, head = true},
}

-- GGUF's number of a type, values a block, bytes a block.
local FORMATS = {
  f32 = {0, 1, 4}, f16 = {1, 1, 2}, bf16 = {30, 1, 2}, q4_0 = {2, 32, 18}, q4_1 = {3, 32, 20},
  q5_0 = {6, 32, 22}, q5_1 = {7, 32, 24}, q8_0 = {8, 32, 34}, q2_k = {10, 256, 84},
  q3_k = {11, 256, 110}, q4_k = {12, 256, 144}, q5_k = {13, 256, 176}, q6_k = {14, 256, 210},
  iq4_nl = {20, 32, 18}, iq4_xs = {23, 256, 136},
}

-- Mixtures: the formats of some matrices, and that of all others. llama.cpp's give these to a part
-- of the layers; here all have them. mixed: what no known file has, neighbours never alike.
local MIXTURES = {
  q4_k_m = {attn_v = "q6_k", ffn_down = "q6_k", others = "q4_k"},
  q5_k_m = {attn_v = "q6_k", ffn_down = "q6_k", others = "q5_k"},
  mixed = {attn_q = "q4_k", attn_k = "q3_k", attn_v = "q6_k", ffn_gate = "bf16", ffn_up = "q8_0",
    others = "q5_k"},
}

local ALIGNMENT, SEED = 32, 1
local UNKNOWN, CONTROL, UNUSED, BYTE = 2, 3, 5, 6 -- types of tokens
local U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5 -- types of values

local function sorted(set)
  local list = {}
  for name in pairs(set) do list[#list + 1] = name end
  table.sort(list)
  return table.concat(list, ", ")
end

-- "llama-1b-q4_k" as a shape and a function that gives a matrix's format, or nil and what is wrong.
local function parse(name)
  local kind, format = name:match "^(.-)%-([%w_]+)$"
  local s, mixture = SHAPES[kind], MIXTURES[format] or {others = format}
  local f = FORMATS[mixture.others]
  if not s or not f then
    return nil, ("shape:%s is not SHAPE-FORMAT: shapes are %s, formats %s, mixtures %s"):format(
      name, sorted(SHAPES), sorted(FORMATS), sorted(MIXTURES))
  end
  if s.width % f[2] ~= 0 or s.hidden % f[2] ~= 0 then
    return nil, ("shape:%s: rows of %d and %d values are no whole blocks of %d"):format(name,
      s.width, s.hidden, f[2])
  end
  return s, function(matrix)
    return FORMATS[mixture[matrix:gsub("^blk%.%d+%.", "")] or mixture.others]
  end
end

-- ---- the file ----

local function packed_string(text) return string.pack("<s8", text) end

local function values_of(s, name)
  local n = 0
  local out = {}
  local function add(key, kind, data)
    n = n + 1
    out[#out + 1] = packed_string(key) .. string.pack("<I4", kind) .. data
  end
  local function integer(key, value) add(key, U32, string.pack("<I4", value)) end
  local function number(key, value) add(key, F32, string.pack("<f", value)) end
  local function list(key, kind, items)
    add(key, ARRAY, string.pack("<I4I8", kind, #items) .. table.concat(items))
  end
  add("general.architecture", STRING, packed_string "llama")
  add("general.name", STRING, packed_string("shape of " .. name .. ", random weights"))
  integer("llama.vocab_size", s.vocab)
  integer("llama.context_length", s.context)
  integer("llama.embedding_length", s.width)
  integer("llama.block_count", s.layers)
  integer("llama.feed_forward_length", s.hidden)
  integer("llama.attention.head_count", s.heads)
  integer("llama.attention.head_count_kv", s.heads_kv)
  integer("llama.attention.key_length", s.head_dim)
  integer("llama.attention.value_length", s.head_dim)
  integer("llama.rope.dimension_count", s.head_dim)
  number("llama.rope.freq_base", s.base)
  number("llama.attention.layer_norm_rms_epsilon", 1e-5)
  local tokens, types, scores = {}, {}, {}
  for id = 0, s.vocab - 1 do
    local text, kind = ("<|unused_%d|>"):format(id), UNUSED
    if id == 0 then text, kind = "<unk>", UNKNOWN
    elseif id <= 2 then text, kind = id == 1 and "<s>" or "</s>", CONTROL
    elseif id < 3 + 256 then text, kind = ("<0x%02X>"):format(id - 3), BYTE end
    tokens[id + 1], types[id + 1] = packed_string(text), string.pack("<i4", kind)
    scores[id + 1] = string.pack("<f", 0)
  end
  add("tokenizer.ggml.model", STRING, packed_string "llama")
  list("tokenizer.ggml.tokens", STRING, tokens)
  list("tokenizer.ggml.token_type", I32, types)
  list("tokenizer.ggml.scores", F32, scores)
  integer("tokenizer.ggml.bos_token_id", 1)
  integer("tokenizer.ggml.eos_token_id", 2)
  return table.concat(out), n
end

local function padded(n) return (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT end

-- The tensors' entries, the vectors' data (which comes first), and where the data ends.
local function tensors_of(s, format_of)
  local vectors, matrices = {}, {}
  local function vector(name) vectors[#vectors + 1] = {name .. ".weight", s.width} end
  local function matrix(name, n_rows, n_columns)
    matrices[#matrices + 1] = {name .. ".weight", n_columns, n_rows, format_of(name)}
  end
  matrix("token_embd", s.vocab, s.width)
  for i = 0, s.layers - 1 do
    local function of(name) return ("blk.%d.%s"):format(i, name) end
    vector(of "attn_norm")
    matrix(of "attn_q", s.heads * s.head_dim, s.width)
    matrix(of "attn_k", s.heads_kv * s.head_dim, s.width)
    matrix(of "attn_v", s.heads_kv * s.head_dim, s.width)
    matrix(of "attn_output", s.width, s.heads * s.head_dim)
    vector(of "ffn_norm")
    matrix(of "ffn_gate", s.hidden, s.width)
    matrix(of "ffn_up", s.hidden, s.width)
    matrix(of "ffn_down", s.width, s.hidden)
  end
  vector "output_norm"
  if s.head then matrix("output", s.vocab, s.width) end
  local entries, offset = {}, 0
  for _, v in ipairs(vectors) do
    entries[#entries + 1] = string.pack("<s8I4I8I4I8", v[1], 1, v[2], FORMATS.f32[1], offset)
    offset = offset + padded(4 * v[2])
  end
  local ones = string.pack("<f", 1):rep(s.width)
  local data = (ones .. ("\0"):rep(padded(#ones) - #ones)):rep(#vectors)
  for _, m in ipairs(matrices) do
    local f = m[4]
    entries[#entries + 1] = string.pack("<s8I4I8I8I4I8", m[1], 2, m[2], m[3], f[1], offset)
    offset = offset + padded(m[2] // f[2] * m[3] * f[3])
  end
  return entries, data, offset
end

-- Writes the file of a name such as "llama-1b-q4_k". Returns true, or nil and why not.
function shape.write(name, path)
  local s, format_of = parse(name)
  if not s then return nil, format_of end
  local values, n_values = values_of(s, name)
  local entries, data, data_bytes = tensors_of(s, format_of)
  local header = "GGUF" .. string.pack("<I4I8I8", 3, #entries, n_values) .. values
    .. table.concat(entries)
  header = header .. ("\0"):rep(padded(#header) - #header)
  local file, message = io.open(path, "wb")
  if not file then return nil, message end
  local ok
  ok, message = file:write(header, data)
  if ok then ok, message = file:seek("set", #header + data_bytes - 1) end
  if ok then ok, message = file:write "\0" end
  local closed, why = file:close()
  if ok and closed then return true end
  return nil, message or why
end

-- As llm.load, of such a name; opts.random is the seed of the weights (default: 1), or false: none
-- are made, and only what needs no pass works.
function shape.load(name, opts)
  local base = os.tmpname()
  local path = ("%s-shape:%s"):format(base, name:gsub("/", "-"))
  local ok, message = shape.write(name, path)
  local model
  if ok then
    local options = {}
    for key, value in pairs(opts or {}) do options[key] = value end
    if options.random == nil then options.random = SEED end
    if not options.random then options.random, options.weight_cache = nil, "off" end
    model, message = llm.load(path, options)
    local first, last = (message or ""):find(path, 1, true)
    if first then
      message = ("%sshape:%s%s"):format(message:sub(1, first - 1), name, message:sub(last + 1))
    end
  end
  os.remove(path)
  os.remove(base)
  return model, message
end

-- "shape:NAME" as NAME; else nil.
function shape.name(path) return path and path:match "^shape:(.*)$" end

return shape
