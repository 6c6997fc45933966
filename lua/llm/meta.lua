---@meta llm
-- luacheck: ignore 212 241
-- meta.lua: the public API of llmlua, for editors (LuaCATS) and readers. It is never run: a spec
-- holds it against the real metatables. What is raised is an llm.Error, of kind misuse where
-- nothing else is said.
--
-- Positions, rows, columns and layers count from 1; token ids are names, from 0, as in the model
-- file.

---@alias llm.Ids integer | integer[] | llm.Tensor one id, a list of ids, or an i32 tensor
---@alias llm.RowIds integer | integer[] | integer[][] | llm.Tensor for all rows, or a list each
---@alias llm.Operand number | number[] | number[][] | llm.Tensor a flat list is a column

---@class llm
---@field version string
local llm = {}

---@class llm.LoadOptions
---@field device? "auto"|"cpu"|"ref"|"cuda"|string auto: LLMLUA_DEVICE of the environment, else
---cuda where a GPU answers, else cpu. "cuda:1" is the second GPU. ref: plain f32 arithmetic
---@field cuda_lib? string the plug-in for GPUs. Default: libllmlua-cuda.so beside the program
---@field invariant? boolean on a GPU: a row's results are the same bits alone and in any batch, as
---they always are on a CPU; slower. Default: false
---@field gpu_layers? integer of a model that does not fit on the GPU: only its last so many layers
---(0 …) and the head are there, the CPU, with `threads`, computes the embedding and the others. Logits
---are on the GPU as always; ids chosen there are waited for when they are fed. As many as the model
---has, or more: all of it is there. Refused on a CPU, unless "auto" found no GPU
---@field threads? integer at most the cores this process may use; 0: as many. Shared by all models
---@field ctx? integer positions a cache may hold. Default: the trained context, at most 4096
---@field kv? "f32"|"f16"|"q8_0" type of keys and values. Default: f32 on ref, else f16
---@field pages? integer budget of cache pages (32 positions each) of all caches together
---@field swap_pages? integer on a device with its own memory: pages of sequences set aside that may
---have copies in the host's memory; what has none is recomputed. Default: as many as `pages`, in at
---most half of what the host has free
---@field max_rows? integer rows of logits or hidden states that one call may ask for. Default: 1024
---@field piece? integer ids that a prefill feeds at once. Default: 256
---@field eog? llm.Ids replaces the file's end-of-generation ids
---@field weight_cache? string folder where weights made ready for the device are kept for the next
---start, or "off". Default: LLMLUA_WEIGHT_CACHE, else llmlua/weights in the user's cache folder
---@field random? integer not 0: matrices are random numbers of this seed, whatever the file holds
---@field f16_as_bf16? boolean F16 weights are rounded to BF16 (8 bits of 11 stay), and where the
---processor multiplies pairs of those (AVX512_BF16), activations too: faster there, less exact. BF16
---weights are multiplied so there in any case. Nothing changes without F16 matrices; ref refuses it

---Loads a GGUF file; without a path the built-in model. Raises for bad options only.
---@param path? string
---@param opts? llm.LoadOptions
---@return llm.Model? model
---@return string? message why there is none
function llm.load(path, opts) end

---@class llm.DeviceInfo
---@field device string what llm.load takes: "cpu", "cuda:1"
---@field name string? of the hardware
---@field memory integer? bytes
---@field memory_free integer? bytes
---@field compute string? of a GPU: its compute capability, "9.0"
---@field driver string? of a GPU: the newest CUDA that its driver knows, "13.0"
---@field runtime string? of a GPU: the CUDA that the plug-in was made with
---@field reason string? why it cannot be opened

---What there is to compute on; for GPUs that cannot be had an entry with the reason.
---@param opts? {cuda_lib?: string} the plug-in for GPUs. Default: as llm.load
---@return llm.DeviceInfo[]
function llm.devices(opts) end

---A tensor of a list of lists (rows) or a flat list (a column), all numbers, all rows of one
---length. Without dtype: i32 if all entries are integers (not 1.0) of 32 bits, else f32. Of a
---tensor: a copy. It lies on the device of the model that was loaded first; operations of models of
---two devices take lists instead.
---@param list number[][] | number[] | llm.Tensor
---@param dtype? "f32" | "i32"
---@return llm.Tensor
function llm.tensor(list, dtype) end

---Logits [rows, vocabulary] of a list of lists, or of a flat list, which is one row. Of a tensor: a
---copy.
---@param list number[][] | number[] | llm.Tensor
---@return llm.Logits
function llm.logits(list) end

---A source of random numbers with that seed (0), stream 1, position 1.
---@param seed? integer any of 64 bits
---@return llm.Rng
function llm.rng(seed) end

---The ids of a sequence, and what sampler stages keep about it.
---@param prompt? llm.Ids
---@return llm.Seq
function llm.seq(prompt) end

---The caches of the surviving rows: result i continues kvs[rows[i]]. A parent is moved to its first
---child (the handle too), forked for further ones, and closed where it has none: use only the
---result afterwards.
---@param kvs llm.Cache[] none twice
---@param rows llm.Ids numbers from 1 to #kvs
---@return llm.Cache[]
function llm.reorder(kvs, rows) end

---@class llm.Stats
---@field launches integer operations given to devices
---@field syncs integer times something waited for a device
---@field bytes_up integer copied to devices
---@field bytes_down integer copied from devices
---@field forward_rows integer positions computed by forward passes
---@field passes integer passes over the weights
---@field prefix_tokens integer positions not computed because a cache held them
---@field pages_used integer cache pages in use now
---@field tensor_bytes integer live tensors, and memory kept for new ones
---@field lua_s number seconds between forward passes
---@field step_s number seconds in forward passes

---A snapshot of the counters of all devices of this Lua state.
---@return llm.Stats
function llm.stats() end

---An error to raise with error(): the traceback is the current one if none is given.
---@param kind llm.Kind
---@param message string
---@param traceback? string
---@return llm.Error
function llm.error(kind, message, traceback) end

---The class of a value ("llm.Model", "llm.Tensor", "llm.Logits" …), or nil if it is not of llm.
---@param value any
---@return string?
function llm.type(value) end

---@alias llm.Kind "misuse" | "cache_full" | "out_of_memory" | "interrupted" | "time" | "nan"
---  | "no_finite" | "device" | "script" | "input"

---What llm raises. tostring gives the message; .. joins it with strings.
---@class llm.Error
---@field kind llm.Kind
---@field message string lower case, names the thing and both numbers
---@field traceback string where it was raised

-- ---- Model ----

---Weights, tokenizer and metadata of a file; never changes. Its caches keep what they need when it
---is closed.
---@class llm.Model
---@field arch string "llama", "qwen2" …
---@field name string? what the file calls itself
---@field path string
---@field vocab_size integer
---@field n_layers integer
---@field width integer columns of a hidden state
---@field n_params integer
---@field ctx integer positions a cache may hold
---@field ctx_train integer positions the model was trained for
---@field bos integer? id that begins a text
---@field eog integer[] ids that end a text; a new list at each reading
---@field metadata llm.Metadata
---@field chat_template string?
---@field warning string? what a user should know about this file
---@field kv "f32" | "f16" | "q8_0"
---@field device string "cpu", "ref"
---@field device_info string the device with its tier and threads; of a split model both
---@field gpu_layers integer layers on a GPU, always the last ones
---@field device_note string? what a user should know about it: why it is not the one hoped for
---@field max_rows integer rows that one call may ask for
---@field piece integer ids that a prefill feeds at once, and that a tree may have
---@field n_pages integer budget of cache pages
---@field page_bytes integer
---@field position_bytes integer keys and values of one position
---@field weight_bytes integer
---@field weight_bytes_step integer read by one forward pass of one row
---@field load_s number seconds it took to load
---@field hash string of the file's content, 32 hex digits; reads the whole file at the first use
local Model = {}

---@class llm.EncodeOptions
---@field add_special? boolean BOS and EOS by the file's rules. Default: true
---@field parse_special? boolean texts of special tokens become those tokens. Default: false

---The ids of a text (any bytes).
---@param text string
---@param opts? llm.EncodeOptions
---@return integer[]
function Model:encode(text, opts) end

---@class llm.DecodeOptions
---@field render_special? boolean special tokens show as text. Default: true

---The bytes of ids.
---@param ids llm.Ids
---@param opts? llm.DecodeOptions
---@return string
function Model:decode(ids, opts) end

---The bytes of one token.
---@param id integer | llm.Tensor
---@return string
function Model:token(id) end

---A row of logits to add where a text must begin with bytes: 0 for ids whose bytes begin with them
---or are a beginning of them, −inf for all others, for special tokens and such as have no bytes. No
---bytes: 0 for all.
---@param bytes string
---@return llm.Logits [1, vocab_size]
function Model:prefix_mask(bytes) end

---Whether the id ends a text (model.eog).
---@param id integer | llm.Tensor
---@return boolean
function Model:is_eog(id) end

---Hyper-parameters, sizes and the plan, as text of several lines.
---@return string
function Model:describe() end

---What the part of a model on one of two devices takes.
---@class llm.MemoryPart
---@field device string "cpu", "cuda"
---@field first_layer integer
---@field last_layer integer less than first_layer: none but the head
---@field packed_bytes integer
---@field page_bytes integer of a cache page, on this device
---@field scratch_bytes integer

---@class llm.Memory
---@field packed_bytes integer weights that the device made ready for itself
---@field mapped_bytes integer weights that are read where the file is mapped
---@field scratch_bytes integer activations of a pass
---@field pages_used integer cache pages in use now, of `page_bytes` each
---@field pages_most integer the most of them at any time
---@field hash_s number seconds that hashing the file took
---@field weights_s number seconds until the weights were ready, but for the hash
---@field weights_from "file" | "image" image: as an earlier start kept them
---@field note string? why the weights were not kept for the next start
---@field parts llm.MemoryPart[]? of a model that is on two devices (gpu_layers)

---What the model takes and how its weights came. Waits until they are kept, if they are to be.
---@return llm.Memory
function Model:memory() end

---What an operation of the plan cost since the profile began. On n threads seconds are those of all
---of them ÷ n.
---@class llm.Cost
---@field kind string as in model:describe(): "matmul", "attend" …
---@field layer integer 0: before the layers; n_layers + 1: the head
---@field weight string? its name in the file
---@field format string? of the weight
---@field calls integer
---@field rows integer of all calls
---@field bytes integer of weights that it had to read, of keys and values to read or write
---@field operations integer of products and attention; multiplying and adding are two
---@field seconds number
---@field input_s number of those: making its input ready (rounding activations to int8)
---@field wait_s number besides: threads that waited for others after it

---@class llm.Profile
---@field costs llm.Cost[] in the order of the plan
---@field run_s number seconds of runs: of all costs, and of threads waiting for each other
---@field tensor_s number seconds in operations on tensors of the model's device

---On: a profile begins, from nothing. Off (so it is after loading): it is dropped, and costs nothing.
---@param on boolean
function Model:set_profile(on) end

---What has been counted; nil if the profile is off.
---@return llm.Profile?
function Model:profile() end

---Adds to the profile, which must be on, what a step would cost that feeds one id to each of so many
---sequences that hold n_past positions: bytes and operations, no seconds. Nothing runs.
---@param n_sequences integer
---@param n_past integer
function Model:count_step(n_sequences, n_past) end

---What the device can do at best, measured now: bytes of its memory read a second, of `size`, or
---operations a second of a product of bf16 matrices of `size` rows and columns (by cuBLASLt, or by
---tensor-core instructions alone where that is not there). nil where that is not known: on a CPU.
---@param what "read" | "products"
---@param size integer
---@return number?
function Model:peak(what, size) end

---An empty cache. Raises cache_full when there is no memory for one.
---@return llm.Cache
function Model:cache() end

---@class llm.ForwardOptions
---@field rows? integer | "all" logits of the last n ids of each cache (1), of all, or 0: none
---@field hidden? integer[] layers whose output is wanted; 0 is the embedding
---@field exit? integer stop after this layer: the logits are final norm and head on its output, and
---the cache's new positions have no more layers: truncate them before a deeper pass
---@field parents? integer[] trees of candidates: which of its cache's ids each follows, 0: the cache

---Feeds ids to a cache, or to each of many in one pass over the weights: ids[i], an id or a list,
---to kvs[i]. Cache after cache, row after row. Rows are the same bits whatever is computed beside
---them. Raises cache_full, out_of_memory, interrupted, nan and no_finite (of ids chosen from bad
---logits); the caches are then as they were. With `parents` an id sees what was cached and its
---ancestors alone; its row is the same bits as if they were fed before it one by one. kv:keep or
---kv:truncate then makes an ordinary sequence of it again.
---@param kv llm.Cache | llm.Cache[] none twice
---@param ids llm.Ids | llm.Ids[]
---@param opts? llm.ForwardOptions
---@return llm.Logits? logits [rows, vocab_size]
---@return table<integer, llm.Tensor>? hidden by layer: [ids fed, width]
function Model:forward(kv, ids, opts) end

---Final norm and head on hidden states [R, width] of any layer.
---@param hidden llm.Tensor
---@return llm.Logits [R, vocab_size]
function Model:logits(hidden) end

---Feeds ids to a cache that holds at least a token: the natural logarithm of the probability of
---each id given what precedes it.
---@param kv llm.Cache
---@param ids llm.Ids
---@return llm.Tensor column [#ids, 1]
function Model:score(kv, ids) end

---The cache that kv:save wrote for this model.
---@param path string
---@return llm.Cache? cache
---@return string? message why there is none
function Model:restore(path) end

---Closes the handle; again is no error. Also by <close> and by collection.
function Model:close() end

---The key-value pairs of a model file: metadata["general.name"], pairs(metadata). Arrays are lists,
---made anew at each reading. Keys that are not there are nil.
---@class llm.Metadata
---@field [string] string | number | boolean | table

-- ---- Cache ----

---The tokens of one sequence with their keys and values. #kv is the number of tokens.
---@class llm.Cache
---@field model llm.Model
local Cache = {}

---A cache of the first n tokens (all). Pages are shared until one side writes. Raises cache_full.
---@param n? integer 0 to #kv
---@return llm.Cache
function Cache:fork(n) end

---Keeps the first n tokens.
---@param n integer 0 to #kv
function Cache:truncate(n) end

---After a pass with `parents`: keeps these positions of it (numbered in the cache, after what it
---held), a path from the root of the tree down; they become ordinary tokens. None: drops the tree.
---@param positions integer[]
function Cache:keep(positions) end

---Truncates to the longest common prefix with ids that leaves at least n (1) of them to feed:
---model:forward(kv, kv:sync(ids)).
---@param ids llm.Ids
---@param n? integer
---@return integer[] left the ids to feed
function Cache:sync(ids, n) end

---The ids from position first (1) on, count of them (the rest).
---@param first? integer
---@param count? integer
---@return integer[]
function Cache:tokens(first, count) end

---Writes a file that model:restore reads; an old file stays whole if that fails.
---@param path string
---@return true? ok
---@return string? message why not
function Cache:save(path) end

---Gives the pages back; again is no error. Also by <close> and by collection.
function Cache:close() end

-- ---- Tensor ----

---Numbers on the device, rows × columns, f32 or i32. With one row or one column t[i] is entry i (of
---Logits with one row: of token id i), and #t their number; else t[i] is row i, a copy, and #t the
---number of rows.
---
---Operations return new tensors; a name with a trailing underscore changes the tensor itself and
---returns it. A row broadcasts over rows, a column (or flat list) over columns. On Logits, and on
---what filters and operations entry by entry make of them, ids are token ids; columns of other
---tensors count from 1. Reading (t[i], item, tolist, lists, tostring; ids given to mask, only and
---rows) is the only wait, and raises nan or no_finite for a choice from a row with a NaN or +inf,
---or without a finite entry.
---@class llm.Tensor
---@field n_rows integer
---@field n_columns integer
---@field dtype "f32" | "i32"
---@field is_logits boolean
---@field [integer] number | llm.Tensor
---@operator add(llm.Operand): llm.Tensor
---@operator sub(llm.Operand): llm.Tensor
---@operator mul(llm.Operand): llm.Tensor
---@operator div(llm.Operand): llm.Tensor
---@operator pow(llm.Operand): llm.Tensor
---@operator unm: llm.Tensor
---@operator len: integer
local Tensor = {}

---A Tensor whose columns are the vocabulary, keyed by token id.
---@class llm.Logits : llm.Tensor

-- choosing

---The column of the largest entry of each row; the lower one of equals.
---@return llm.Tensor ids i32 column [rows, 1]
function Tensor:argmax() end

---The k largest entries of each row, best first, the lower column of equals first. min(k, columns)
---of them.
---@param k integer at least 1
---@return llm.Tensor scores [rows, k]
---@return llm.Tensor ids i32 [rows, k]
function Tensor:topk(k) end

---The k largest entries of all rows together, or of each group of rows / groups consecutive rows:
---best first, the lower row of equals first, then the lower column. min(k, rows of a group ×
---columns) of each group, group after group; −inf come last.
---@param k integer at least 1
---@param opts? {groups?: integer}
---@return llm.Tensor scores column
---@return llm.Tensor ids i32 column
---@return llm.Tensor rows i32 column
function Tensor:topk_joint(k, opts) end

---Draws a column of each row with the probabilities softmax(row), as the argmax of gumbel(rng).
---Row i draws with stream + i − 1 of one rng, or with rng[i]; each rng moves on by one position.
---@param rng llm.Rng | llm.Rng[]
---@return llm.Tensor ids i32 column [rows, 1]
function Tensor:sample(rng) end

---The entries plus Gumbel noise, a function of (seed; stream, position, column). −inf stays.
---@param rng llm.Rng | llm.Rng[] see sample
---@return llm.Tensor
function Tensor:gumbel(rng) end

---gumbel in place.
---@param rng llm.Rng | llm.Rng[] see sample
---@return llm.Tensor self
function Tensor:gumbel_(rng) end

-- rows

---The logarithm of softmax of each row.
---@return llm.Tensor
function Tensor:log_softmax() end

---log_softmax in place.
---@return llm.Tensor self
function Tensor:log_softmax_() end

---Each row as probabilities.
---@return llm.Tensor
function Tensor:softmax() end

---softmax in place.
---@return llm.Tensor self
function Tensor:softmax_() end

---ln of the sum of exp of each row.
---@return llm.Tensor column
function Tensor:logsumexp() end

---Entropy of softmax of each row, in nats.
---@return llm.Tensor column
function Tensor:entropy() end

---The largest entry of each row.
---@return llm.Tensor column
function Tensor:max() end

---The smallest entry of each row.
---@return llm.Tensor column
function Tensor:min() end

---The sum of each row.
---@return llm.Tensor column
function Tensor:sum() end

---Population standard deviation of the finite entries of each row.
---@return llm.Tensor column
function Tensor:std() end

---Each row in ascending order.
---@return llm.Tensor
function Tensor:sort() end

---sort in place.
---@return llm.Tensor self
function Tensor:sort_() end

---Running sums of each row.
---@return llm.Tensor
function Tensor:cumsum() end

---cumsum in place.
---@return llm.Tensor self
function Tensor:cumsum_() end

---Each row divided by its Euclidean length; rows of zeros stay.
---@return llm.Tensor
function Tensor:normalize() end

---normalize in place.
---@return llm.Tensor self
function Tensor:normalize_() end

-- filters: what is cut becomes −inf; every row with a finite entry keeps one. Parameters are a
-- number, or a column with one for each row

---Keeps the k largest entries of each row, the lower column of equals.
---@param k integer | integer[] | llm.Tensor at least 0; 0: off
---@return llm.Tensor
function Tensor:top_k(k) end

---top_k in place.
---@param k integer | integer[] | llm.Tensor at least 0; 0: off
---@return llm.Tensor self
function Tensor:top_k_(k) end

---Keeps the smallest set of the most likely entries with a mass of at least p.
---@param p number | number[] | llm.Tensor 0 to 1; 1: off
---@return llm.Tensor
function Tensor:top_p(p) end

---top_p in place.
---@param p number | number[] | llm.Tensor 0 to 1; 1: off
---@return llm.Tensor self
function Tensor:top_p_(p) end

---Keeps entries with at least p times the probability of the likeliest.
---@param p number | number[] | llm.Tensor 0 to 1; 0: off
---@return llm.Tensor
function Tensor:min_p(p) end

---min_p in place.
---@param p number | number[] | llm.Tensor 0 to 1; 0: off
---@return llm.Tensor self
function Tensor:min_p_(p) end

---Cuts entries below x; the largest entry stays.
---@param x number | number[] | llm.Tensor
---@return llm.Tensor
function Tensor:cut_below(x) end

---cut_below in place.
---@param x number | number[] | llm.Tensor
---@return llm.Tensor self
function Tensor:cut_below_(x) end

---Keeps the first k entries in ascending key (default −entry; the lower column of equals first).
---@param k integer | integer[] | llm.Tensor
---@param key? llm.Tensor of the same shape
---@return llm.Tensor
function Tensor:threshold_k(k, key) end

---threshold_k in place.
---@param k integer | integer[] | llm.Tensor
---@param key? llm.Tensor of the same shape
---@return llm.Tensor self
function Tensor:threshold_k_(k, key) end

---Keeps the first entries in ascending key (default −entry) whose probabilities sum to at least p.
---@param p number | number[] | llm.Tensor 0 to 1
---@param key? llm.Tensor of the same shape
---@return llm.Tensor
function Tensor:threshold_mass(p, key) end

---threshold_mass in place.
---@param p number | number[] | llm.Tensor 0 to 1
---@param key? llm.Tensor of the same shape
---@return llm.Tensor self
function Tensor:threshold_mass_(p, key) end

---These entries to −inf. May empty a row. A tensor has a row of ids for each row, or one for all.
---@param ids llm.RowIds
---@return llm.Tensor
function Tensor:mask(ids) end

---mask in place.
---@param ids llm.RowIds
---@return llm.Tensor self
function Tensor:mask_(ids) end

---All entries but these to −inf. May empty a row.
---@param ids llm.RowIds
---@return llm.Tensor
function Tensor:only(ids) end

---only in place.
---@param ids llm.RowIds
---@return llm.Tensor self
function Tensor:only_(ids) end

-- values

---The entries with these ids: a list for all rows, a list of as many for each, or an i32 tensor
---likewise.
---@param ids llm.RowIds
---@return llm.Tensor [rows, ids of a row]
function Tensor:gather(ids) end

---Adds x to the entries with these ids, once for each time that an id is given. A flat list x is a
---value for each id if it has as many entries as ids for a row, unless it has one for each of
---several rows.
---@param ids llm.RowIds see gather
---@param x llm.Operand
---@return llm.Tensor
function Tensor:add_at(ids, x) end

---add_at in place.
---@param ids llm.RowIds see gather
---@param x llm.Operand
---@return llm.Tensor self
function Tensor:add_at_(ids, x) end

---Puts x into the entries with these ids. A flat list x is a value for each id if it has as many
---entries as ids for a row, unless it has one for each of several rows.
---@param ids llm.RowIds see gather
---@param x llm.Operand
---@return llm.Tensor
function Tensor:set_at(ids, x) end

---set_at in place.
---@param ids llm.RowIds see gather
---@param x llm.Operand
---@return llm.Tensor self
function Tensor:set_at_(ids, x) end

---The entries where cond is not 0, else those of y.
---@param cond llm.Operand
---@param y llm.Operand
---@return llm.Tensor
function Tensor:where(cond, y) end

---where in place.
---@param cond llm.Operand
---@param y llm.Operand
---@return llm.Tensor self
function Tensor:where_(cond, y) end

---self + b. i32 with i32 or an integer stays i32, else f32.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:add(b) end

---add in place.
---@param b llm.Operand
---@return llm.Tensor self
function Tensor:add_(b) end

---self - b. i32 with i32 or an integer stays i32, else f32.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:sub(b) end

---sub in place.
---@param b llm.Operand
---@return llm.Tensor self
function Tensor:sub_(b) end

---self * b. i32 with i32 or an integer stays i32, else f32.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:mul(b) end

---mul in place.
---@param b llm.Operand
---@return llm.Tensor self
function Tensor:mul_(b) end

---self / b, f32.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:div(b) end

---div in place.
---@param b llm.Operand
---@return llm.Tensor self
function Tensor:div_(b) end

---self ^ b, f32.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:pow(b) end

---pow in place.
---@param b llm.Operand
---@return llm.Tensor self
function Tensor:pow_(b) end

---1 where self < b, else 0.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:lt(b) end

---1 where self ≤ b, else 0.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:le(b) end

---1 where self > b, else 0.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:gt(b) end

---1 where self ≥ b, else 0.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:ge(b) end

---1 where self = b, else 0.
---@param b llm.Operand
---@return llm.Tensor
function Tensor:eq(b) end

---e ^ self.
---@return llm.Tensor
function Tensor:exp() end

---exp in place.
---@return llm.Tensor self
function Tensor:exp_() end

---Natural logarithm.
---@return llm.Tensor
function Tensor:log() end

---log in place.
---@return llm.Tensor self
function Tensor:log_() end

---Absolute value.
---@return llm.Tensor
function Tensor:abs() end

---abs in place.
---@return llm.Tensor self
function Tensor:abs_() end

---Square root.
---@return llm.Tensor
function Tensor:sqrt() end

---sqrt in place.
---@return llm.Tensor self
function Tensor:sqrt_() end

----self.
---@return llm.Tensor
function Tensor:neg() end

---neg in place.
---@return llm.Tensor self
function Tensor:neg_() end

---At least lo and at most hi; nil is no bound.
---@param lo? number
---@param hi? number
---@return llm.Tensor
function Tensor:clamp(lo, hi) end

---clamp in place.
---@param lo? number
---@param hi? number
---@return llm.Tensor self
function Tensor:clamp_(lo, hi) end

-- shapes

---Matrix product [R, K] · [K, C].
---@param b llm.Tensor | number[][]
---@return llm.Tensor [R, C]
function Tensor:matmul(b) end

---Transposed.
---@return llm.Tensor
function Tensor:t() end

---b below (dim 1, the default) or beside (dim 2).
---@param b llm.Tensor | number[][]
---@param dim? 1 | 2
---@return llm.Tensor
function Tensor:cat(b, dim) end

---These rows, in this order, any of them repeatedly.
---@param rows llm.Ids from 1
---@return llm.Tensor
function Tensor:rows(rows) end

---Row i, as a copy.
---@param i integer
---@return llm.Tensor [1, columns]
function Tensor:row(i) end

---count rows (dim 1) or columns (dim 2) from first on, as a copy. first of Logits' columns is a
---token id, and the columns taken are then no longer token ids.
---@param dim 1 | 2
---@param first integer
---@param count integer
---@return llm.Tensor
function Tensor:narrow(dim, first, count) end

---The same entries in memory of their own.
---@return llm.Tensor
function Tensor:copy() end

-- reading

---A flat list where there is one row or one column, else a list of rows. Id 0 of Logits comes
---first.
---@return number[] | number[][]
function Tensor:tolist() end

---A list of rows.
---@return number[][]
function Tensor:lists() end

---The entry of a tensor that has one.
---@return number
function Tensor:item() end

---Gives the memory back; again is no error. Also by <close> and by collection.
function Tensor:close() end

-- ---- Rng ----

---A name for random numbers: the number of id v is a function of (seed; stream, position, v), by
---Philox. Neither neighbours nor threads nor order matter.
---@class llm.Rng
---@field seed integer
---@field stream integer
---@field position integer of the next draw
local Rng = {}

---A copy at position n.
---@param n integer 0 to 2^32 − 1
---@return llm.Rng
function Rng:at(n) end

---A copy with stream i, at the same position.
---@param i integer at least 0
---@return llm.Rng
function Rng:fork(i) end

---A number between 0 and 1, both excluded; moves on by one position.
---@return number
function Rng:uniform() end

-- ---- Seq ----

---The ids of one sequence. #seq is their number. Any other key is a field of the script's: sampler
---stages keep what they remember under private keys, replaced and never modified in place.
---@class llm.Seq
---@field ids integer[] prompt and output, not to be modified. Reading waits for tensors pushed
---@field n_prompt integer
---@field stream integer the rng stream of this sequence. Default: 1
---@field [any] any
local Seq = {}

---Appends an id; a tensor (one entry) is not waited for.
---@param id integer | llm.Tensor
function Seq:push(id) end

---A copy with the id appended, if one is given. Fields are copied; tables in them are shared.
---@param id? integer | llm.Tensor
---@return llm.Seq
function Seq:fork(id) end

-- ---- what the host asks of a script, and gives it ----

---The table that the file of a strategy or a tool returns: it has `decode` or `main`. A file that
---returns nothing is an ordinary program. The file is run anew for each job, in an environment in
---which no global can be written.
---@class llm.Strategy
---@field about? string one line for the lists and --help
---@field options? table<string, llm.OptionEntry|any> by name; two_words is --two-words. A bare
--- value is the default, and its type that of the option
---@field decode? llm.Decode
---@field main? fun(model: llm.Model, opt: llm.Opt): integer? returns the exit status, default 0
---@field common? string[] main: the common options there are, or their groups: prompt, end,
--- sampling, engine, output (default: all)
---@field prompt? boolean|string main: it needs a text, which arrives as opt.prompt_ids; a string
--- names it ("text to score")
---@field model? boolean main: false, if it needs none
---@field arguments? string main: what the command line holds besides options, in words ("FILE…");
--- at least one, they arrive as opt.arguments
---@field help? string more lines for --help

---Makes one text: emits its ids one by one and returns nothing, or emits nothing and returns a list
---of texts, best first. An empty text is a text. What it leaves open is closed.
---@alias llm.Decode
---| fun(model: llm.Model, prompt: integer[], opt: llm.Opt, emit: llm.Emit): llm.Result[]?

---@class llm.OptionEntry
---@field default? any
---@field type? "integer"|"number"|"string"|"boolean"|"list"|"file"|"model" default: that of the
--- default. A model is loaded once and arrives as llm.Model
---@field of? "integer"|"number"|"string" what a list holds
---@field split? boolean of a list: false where a comma belongs to the item; the option may be given
--- several times
---@field choices? any[]
---@field min? number
---@field max? number
---@field above? number the value must be greater
---@field help? string

---What the command line gave: the options of the script by name, and the common ones. Reading a
---name that is none raises.
---@class llm.Opt
---@field max_tokens integer always finite: what --max-tokens and the context allow
---@field seed integer
---@field sampler llm.Sampler
---@field max_rows integer rows of logits one pass may be asked for
---@field logprobs? integer
---@field stop? string[]
---@field json boolean
---@field quiet boolean
---@field prompt_ids integer[] of a tool that needs a text
---@field arguments string[] of a tool that declares them
---@field partial? fun(failure?: {kind: string, message: string}): llm.Result[]? set by a script
--- that returns its texts at the end: called when it is interrupted or fails, for what there is. A
--- tool prints it itself

---The chain of --sampler or of the single sampling options. opt.sampler(logits, seqs) runs the
---chain and draws an id for each row, with the stream of its sequence at the position of the token
---in the output. Without seqs: one row, of the prompt and what was emitted.
---@class llm.Sampler
---@field filter llm.Stage the chain alone
---@field is_empty boolean no stage was asked for (--min-tokens is none)
---@field blame fun(err: any): any an error of a choice, with sampler and step; others as they are
---@overload fun(logits: llm.Logits, seqs?: llm.Seq[]): llm.Tensor

---Adds an id to the text. Returns nil, or why the text is over: then decode should end. The end
---token belongs to the ids and not to the text.
---@alias llm.Emit fun(id: integer|llm.Tensor, info?: llm.EmitInfo): llm.Reason?
---@alias llm.Reason "eos"|"length"|"stop"|"time"

---@class llm.EmitInfo
---@field logits? llm.Logits the row that the id was chosen from: gives score and log-probabilities
---@field skip? integer leading bytes of the text that repeat the prompt

---@class llm.Result
---@field ids integer[] new ids, with the end token if there is one
---@field score? number what the list is ordered by
---@field finish? llm.Reason default: eos or length, by the last id

---samplers/x.lua returns this: it reads its parameters and makes a stage. A name is looked for in
---samplers/ beside the script, then of the current folder, then among the bundled. A parameter must
---be read when the stage is made or in each of its calls; one that is given and never read is
---refused as unknown.
---@alias llm.SamplerFile fun(opts: table<string, any>, model: llm.Model): llm.Stage

---Filters the logits of all rows; what it returns has the same shape. seqs[i] belongs to row i.
---What a stage must remember it keeps in seqs[i] under a key of its own. seed: the job's, for what a
---stage draws by itself.
---@alias llm.Stage fun(logits: llm.Logits, seqs: llm.Seq[], seed?: integer): llm.Logits

---The file of --stop-rule returns this: new ids and text so far, true to stop.
---@alias llm.StopRule fun(ids: integer[], text: string): boolean?

---require "llm.batch": many prompts under one strategy. run iterates over the results, as they come
---or in order; the loop may be left. A strategy is a path, a bundled name, or {source = text}; the
---prompts are a list or an iterator of texts, lists of ids, or tables {prompt =, id =, option = …};
---opts are options of the strategy and of a text, and `jobs` (16, side by side), `ordered`,
---`stop_rule`.
---@class llm.batch
---@field run fun(model: llm.Model, strategy: string|table, prompts: llm.Prompt[]|(fun(): llm.Prompt?), opts?: table<string, any>): fun(): llm.BatchResult?
---@field options fun(): string[] the common options that opts may hold

---@alias llm.Prompt string|integer[]|{prompt: string|integer[]?, prompt_ids: integer[]?, id: string|integer?}

---A line of --out or of --json; nil here is null there.
---@class llm.BatchResult
---@field index integer of the prompt, from 1
---@field id? string|integer as given
---@field seed integer
---@field text string
---@field ids integer[]
---@field score? number
---@field finish? string
---@field prompt_ids integer[]
---@field outputs {text: string, ids: integer[], score: number?, finish: string?}[]
---@field counts {prompt: integer, output: integer}
---@field timings table<string, number>
---@field error? {kind: string, message: string, traceback: string?} alone with index and id where
--- the prompt was refused

---require "llm.check": parameters of samplers with their range. What is wrong is raised with its
---name.
---@class llm.check
---@field number fun(opts: table, name: string, default?: number, low?: number, high?: number): any
---@field integer fun(opts: table, name: string, default?: any, low?: integer, high?: integer): any
---@field boolean fun(opts: table, name: string, default?: boolean): boolean
---@field text fun(opts: table, name: string, default?: string): string
---@field texts fun(opts: table, name: string, default?: string[]): string[] one text is a list too
---@field list fun(opts: table, name: string, default?: table, what: string): table
---@field ids fun(opts: table, name: string, default?: integer[]): integer[] one id is a list too
---@field id_lists fun(opts: table, name: string, default?: integer[][]): integer[][]
---@field bias fun(opts: table, name: string): {ids: integer[], x: number}[] of a list of [ids, x]
---@field is_tensor fun(value: any): boolean

---require "llm.history": the ids that each sequence has seen, once each, as i32 [rows, longest]
---that fits gather and set_at, and how often, as f32 of that shape; nil if nothing was seen.
---output_only leaves the prompt out.
---@alias llm.history fun(seqs: llm.Seq[], output_only?: boolean): llm.Tensor?, llm.Tensor?

---require "llm.match": how the ids of a sequence repeat each other.
---@class llm.match
---@field ends_with fun(seq: llm.Seq, ids: integer[]): boolean
---@field followers fun(ids: integer[], n: integer): integer[] the ids after earlier occurrences of
--- the last n ids
---@field repeats fun(ids: integer[], first: integer, reach: integer, least: integer):
--- table<integer, integer> by id: how many ids before one of its places are those at the end, at
--- most `reach`, if at least `least`; ids[first] and later count

---require "llm.ragged": amounts for ids, in lists of any lengths, one for each row; the lists are
---changed.
---@class llm.ragged
---@field add fun(logits: llm.Logits, ids: integer[][], amounts: number[][]): llm.Logits
---@field pad fun(lists: any[][], fill: any): integer makes all as long as the longest

---require "llm.coin": 1 for each sequence with this probability, else 0; a function of (seed; stream,
---position in the output).
---@alias llm.coin fun(seqs: llm.Seq[], seed: integer?, probability: number): integer[]

---require "llm.phrases": texts in the middle of others as ids.
---@class llm.phrases
---@field ids fun(model: llm.Model, text: string): integer[]

---require "llm.feedback": a stage with a number for each sequence, kept under `key`, `first` at the
---start; update gives the next one by the surprise in bits of the id that was taken; cut filters.
---@alias llm.feedback fun(key: string, first: number,
--- update: (fun(number: number, bits: number): number),
--- cut: fun(logits: llm.Logits, numbers: number[]): llm.Logits): llm.Stage

---require "llm.speculation": guesses that a pass verifies, so that the text is what plain sampling
---draws. A sequence runs behind its last id; `ahead` is a fork of it with guesses appended.
---@class llm.speculation
---@field room fun(opt: llm.Opt, seq: llm.Seq, n: integer): integer how many of n guesses are of use
---@field pace fun(n: integer, n_made: integer, n_right: integer, most: integer): integer how many to
--- guess next when n were wanted, n_made were made and n_right of those were right
---@field rewind fun(kv: llm.Cache, n: integer) drops all but the first n ids
---@field rest fun(kv: llm.Cache, seq: llm.Seq): integer[] the ids that the cache does not hold
---@field verify fun(model: llm.Model, kv: llm.Cache, seq: llm.Seq, ahead: llm.Seq,
--- draw: llm.Draw, emit: llm.Emit): boolean one pass; pushes and emits what is right and the draw
--- that follows. True if the text is over
---@field tree fun(seq: llm.Seq): llm.Guesses several guesses at once, behind seq's last id: node 1
---@field verify_tree fun(model: llm.Model, kv: llm.Cache, seq: llm.Seq, tree: llm.Guesses,
--- draw: llm.Draw, emit: llm.Emit): boolean, llm.Logits as verify, of a cache that holds all of seq
--- but its last id; also the logits, a row for each node

---@alias llm.Draw fun(logits: llm.Logits, seqs: llm.Seq[]): llm.Tensor such as opt.sampler

---@class llm.Guesses
---@field ids integer[] of each node
---@field parents integer[] the node that each follows; 0: none
---@field add fun(self: llm.Guesses, node: integer, id: integer): integer the node of id behind node

---require "llm.branches": continuations of a prompt side by side, for strategies that return a list.
---@class llm.branches
---@field new fun(model: llm.Model, prompt: integer[], opt: llm.Opt): llm.Branch nothing drawn yet
---@field samples fun(model: llm.Model, prompt: integer[], opt: llm.Opt, n: integer,
--- rank: fun(list: llm.Branch[]): llm.Result[]): llm.Result[] n whole texts drawn in one batch, the
--- i-th what plain sampling draws with stream i; `rank` makes what decode returns
---@field grow fun(list: llm.Branch[], draw: llm.Draw, is_done?: fun(branch: llm.Branch): any,
--- logits?: llm.Logits) lengthens them in one batch until they are over or done, which is asked
--- after each id; logits: of the first step, where they have been fed already
---@field drawer fun(opt: llm.Opt): llm.Draw opt.sampler if opt.sample is set, else the argmax of its
--- filter
---@field forward fun(list: llm.Branch[]): llm.Logits, llm.Seq[] one pass, a row for each
---@field expand fun(list: llm.Branch[], opt: llm.Opt, k: integer): llm.NextTokens[], llm.Logits one
--- pass, and the k likeliest next tokens of each
---@field sort fun(list: table[], score: fun(item: table): number): table[], table<table, number> in
--- place, best first, equals in their order; the list and the scores
---@field results fun(list: llm.Branch[], score: fun(branch: llm.Branch): number): llm.Result[]
---@field check_rows fun(opt: llm.Opt, n: integer) raises if a pass may not have n rows
---@field new_ids fun(seq: llm.Seq): integer[]

---@alias llm.Draw fun(logits: llm.Logits, seqs: llm.Seq[]): llm.Tensor

---One text in the making; it ends by the end tokens, stop texts, stop rule and max_tokens of opt.
---@class llm.Branch
---@field kv llm.Cache
---@field seq llm.Seq
---@field feed integer[] ids that the cache does not hold yet
---@field n integer new ids
---@field sum number of their log-probabilities, the model's
---@field text string of the new ids, without the stop text
---@field finish? llm.Reason why it is over
---@field fork fun(self: llm.Branch, stream?: integer): llm.Branch with a cache of its own
---@field push fun(self: llm.Branch, id: integer, logprob: number): llm.Branch
---@field ids fun(self: llm.Branch): integer[] the new ids
---@field mean fun(self: llm.Branch): number log-probability of a new id
---@field close fun(self: llm.Branch) closes the cache

---@class llm.NextTokens
---@field entropy number of what the chain leaves, in nats
---@field [integer] {id: integer, logprob: number, prior: number} likeliest first; prior: the
--- probability by the chain

---require "llm.reward", called with a path or nil and a seed: the value of a branch, by a Lua file
---that returns function(ids, text) → number; nil: its mean log-probability.
---@alias llm.reward fun(path?: string, seed?: integer): fun(branch: llm.Branch): number

---require "llm.metrics": measures of texts (in characters) and lists of ids.
---@class llm.metrics
---@field characters fun(text: string): integer[] code points
---@field profile fun(text: string, order?: integer): table stands for the text in chrf
---@field chrf fun(text: string|table, reference: string|table,
--- opts?: {order?: integer, beta?: number}): number chrF, 0 to 1
---@field edit_distance fun(a: string|any[], b: string|any[]): integer Levenshtein's
---@field similarity fun(a: string|any[], b: string|any[]): number 1 − distance / longer length
---@field distinct fun(lists: any[][], n: integer): number? different n-grams / all n-grams
---@field repetition fun(list: any[], n?: integer): number share of n-grams (4) that were there before

---require "llm.pool", called with opt (its options beam, length_penalty, early_stopping) and how many
---texts it holds (default: opt.beam): the texts that a beam search, or a group of it, has finished.
---@class llm.Pool
---@field width integer texts it holds
---@field add fun(self: llm.Pool, seq: llm.Seq, sum: number, n: integer) a finished one of n new ids
---@field is_over fun(self: llm.Pool, best?: number, n: integer, seq?: llm.Seq): boolean after step
--- n; best: the sum of the best live sequence, seq
---@field results fun(self: llm.Pool, ...: llm.Pool): llm.Result[] of other pools too, best first
---@field partial fun(self: llm.Pool): llm.Result[] while the search runs; opt.partial calls it

---require "llm.words", called with a model, a list of texts and the number of ids that may be made:
---the state of an output that must contain the texts, each written with a space before it or
---without, and the ids that occur in them. Raises input if there is no room for them.
---@alias llm.words fun(model: llm.Model, texts: string[], room: integer): llm.Words, integer[]

---@class llm.Words
---@field left integer ids that suffice to complete what is still to come; 0: all texts are there
---@field after fun(self: llm.Words, id: integer, room: integer): llm.Words? the state with one more
--- id; nil if more than `room` ids would then be needed

return llm
