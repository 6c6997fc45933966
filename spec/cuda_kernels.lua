-- What the compiler is to make of the kernels of a decode step, for spec/cuda_compiler_spec.lua.
-- For each kernel:
--
-- - kernel, template: its name, and a pattern of its template arguments as they are mangled
--
-- - source: the object of the build that has it
--
-- - threads, blocks: of a block, and how many blocks are meant to be on a multiprocessor at once
--
-- - registers: the most a thread may have for that; shared: the most static bytes of a block
--
-- - mma: made of tensor-core instructions; loads: global memory is read 16 bytes at a time
--
-- No kernel of the table may spill. stack, spilled: bytes that one of them uses all the same
-- (attention over heads of 256 numbers); none where it is not given.
local TILES = "product_16 product_blocks product_k"

return {
  {kernel = "product_few", template = "^ILi%d+ELi1E", source = TILES,
    threads = 256, blocks = 2, registers = 128, shared = 9728, mma = true, loads = true},
  {kernel = "product_few", template = "^ILi%d+ELi2E", source = TILES,
    threads = 256, blocks = 1, registers = 255, shared = 19456, mma = true, loads = true},
  {kernel = "product_many", template = "", source = TILES,
    threads = 128, blocks = 2, registers = 255, shared = 32768, mma = true, loads = true},
  {kernel = "product_mixed", template = "", source = "product_mixed",
    threads = 256, blocks = 2, registers = 128, shared = 9728, mma = true, loads = true},
  {kernel = "product_mixed_pair", template = "", source = "product_mixed",
    threads = 256, blocks = 1, registers = 255, shared = 9728, mma = true, loads = true},
  {kernel = "plain_rows", template = "", source = "product_plain",
    threads = 256, blocks = 2, registers = 128, shared = 0, mma = false, loads = false},
  -- f32 keys and values, then those that tensor cores take
  {kernel = "attend", template = "^IL7kern_kv0ELi1E", source = "attend",
    threads = 128, blocks = 2, registers = 216, shared = 2048, mma = false, loads = true},
  {kernel = "attend", template = "^IL7kern_kv[12]ELi1E", source = "attend",
    threads = 128, blocks = 2, registers = 216, shared = 2048, stack = 48, spilled = 320,
    mma = true, loads = true},
  {kernel = "norm_rows", template = "", source = "rows",
    threads = 512, blocks = 2, registers = 64, shared = 256, mma = false, loads = true},
  {kernel = "embed_tiles", template = "", source = "embed",
    threads = 128, blocks = 8, registers = 64, shared = 0, mma = false, loads = false},
  -- choosing the next token: sums and maxima of rows, draws, selections
  {kernel = "summarise_rows", template = "", source = "tensor_row",
    threads = 256, blocks = 2, registers = 128, shared = 256, mma = false, loads = true},
  {kernel = "map_rows", template = "", source = "tensor_row",
    threads = 256, blocks = 4, registers = 64, shared = 0, mma = false, loads = true},
  {kernel = "draw_rows", template = "", source = "tensor_noise",
    threads = 256, blocks = 3, registers = 80, shared = 256, mma = false, loads = true},
  {kernel = "tally", template = "", source = "tensor_tally",
    threads = 512, blocks = 2, registers = 64, shared = 24832, mma = false, loads = true},
  {kernel = "narrow", template = "", source = "tensor_narrow",
    threads = 512, blocks = 2, registers = 64, shared = 41216, mma = false, loads = true},
  {kernel = "keep", template = "", source = "tensor_tally",
    threads = 512, blocks = 2, registers = 64, shared = 0, mma = false, loads = true},
}
