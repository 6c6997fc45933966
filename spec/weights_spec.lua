-- Weights kept for the next start (core/image.c; its C test has what may be wrong with a file), and
-- what --verbose says of memory.
local h = require "spec.helper"
local llm = require "llm"

local path = h.data .. "models/llama-q4_1.gguf"
local ids = {8, 195, 107, 201, 307, 11, 99, 241, 53, 265}

local function sh(format, ...)
  local command = format:format(...)
  assert(os.execute(command), command)
end

local function fresh(name)
  local folder = h.scratch(name)
  sh("rm -rf '%s'", folder)
  return folder
end

local function load(options)
  local all = {device = "cpu", threads = 2, pages = 8}
  for key, value in pairs(options) do all[key] = value end
  return assert(llm.load(path, all))
end

local function count(folder, pattern)
  local pipe = assert(io.popen(("ls '%s' 2>/dev/null | grep -c '%s'"):format(folder, pattern)))
  local n = pipe:read "n"
  pipe:close()
  return n
end

local function logits(model)
  local kv <close> = model:cache()
  return model:forward(kv, ids, {rows = "all"}):lists()
end

describe("weights made ready", function()
  it("are kept in the folder named and read by the next start, bit for bit", function()
    local folder = fresh "kept"
    local first <close> = load {weight_cache = folder}
    local made = first:memory()
    assert.same({"file", nil}, {made.weights_from, made.note})
    assert.equal(1, count(folder, "image$"))
    local second <close> = load {weight_cache = folder}
    assert.equal("image", second:memory().weights_from)
    assert.equal(made.packed_bytes, second:memory().packed_bytes)
    assert.same(logits(first), logits(second))
    local other <close> = load {weight_cache = folder, threads = 1}
    assert.equal("image", other:memory().weights_from)
  end)

  it("are made again when what was kept has changed", function()
    local folder = fresh "altered"
    load({weight_cache = folder}):close()
    sh("for f in '%s'/*.image; do printf '\\377\\377' | dd of=$f bs=1 seek=9000 conv=notrunc "
      .. "2>/dev/null; done", folder)
    local model <close> = load {weight_cache = folder}
    assert.equal("file", model:memory().weights_from)
    local plain <close> = load {weight_cache = "off"}
    assert.same(logits(plain), logits(model))
    local again <close> = load {weight_cache = folder}
    assert.equal("image", again:memory().weights_from)
  end)

  it("are not kept without a folder, nor small ones and the built-in in the user's", function()
    local home = fresh "home"
    local variables = ("unset LLMLUA_WEIGHT_CACHE; HOME='%s' XDG_CACHE_HOME="):format(home)
    for _, model in ipairs {"-m " .. path, ""} do
      sh("%s %s greedy %s -p the -n 1 >%s 2>&1", variables, h.program, model, h.scratch "text")
    end
    assert.is_false(h.exists(home))
    local model <close> = load {weight_cache = "off"}
    assert.equal("file", model:memory().weights_from)
  end)

  it("that are gone because the model's file became shorter end the program with a message",
    function()
      local copy = h.write(h.scratch "short.gguf", h.read(path))
      local script = h.write(h.scratch "short.lua", ([[
        local model = assert(llm.load("%s", {device = "ref"}))
        print "loaded"
        io.stdout:flush()
        assert(io.open(model.path, "w")):close()
        model:forward(model:cache(), {8, 195, 107})]]):format(copy))
      local text, words, code = h.run(script)
      assert.same({"loaded\n", 1}, {text, code})
      assert.matches("a file that was being read .* has become shorter", words)
    end)

  local real = h.real_path "smollm2"
  h.with(real, it, pending)("that nothing names a folder for are not kept; --verbose says so",
    function()
      local command = ("unset LLMLUA_WEIGHT_CACHE XDG_CACHE_HOME HOME; "
        .. "%s greedy -m '%s' --prompt-ids 1 -n 1 --device cpu --verbose 2>&1 >%s | grep -q "
        .. "'weight cache: no folder to keep weights in: neither'")
      sh(command, h.program, real, h.scratch "text")
    end)

  it("that cannot be kept fail nothing; --verbose tells why", function()
    local command = ("greedy -m %s -p the -n 4 --weight-cache /dev/null/x"):format(path)
    local text, words, code = h.run(command .. " --quiet")
    assert.same({0, ""}, {code, words})
    local again
    again, words, code = h.run(command .. " --verbose")
    assert.same({0, text}, {code, again})
    assert(words:find("weight cache: no image in /dev/null/x: Not a directory", 1, true), words)
  end)

  it("are written whole or not at all where files may not grow", function()
    local folder = fresh "limited"
    local command = "%s greedy -m %s -p the -n 4 --weight-cache '%s' --verbose 2>'%s' >'%s'"
    local text = h.run(("greedy -m %s -p the -n 4 --quiet"):format(path))
    sh("ulimit -f 40; " .. command, h.program, path, folder, h.scratch "words", h.scratch "text")
    assert.equal(text, h.read(h.scratch "text"))
    assert(h.read(h.scratch "words"):find "weight cache: no image in .*: File too large")
    assert.same({0, 0}, {count(folder, "image"), count(folder, "part")})
  end)

  local can_mount = os.execute "unshare -rm true 2>/dev/null"
  ;(can_mount and it or pending)("that a container's limit has no room for fail with both numbers",
    function()
      local script = h.write(h.scratch "limit.sh", [[
        mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/memory || exit 9
        cd /sys/fs/cgroup
        echo $1 >memory.max && echo 30000 >memory.current && echo "inactive_file 5000" >memory.stat
        cd memory
        echo $1 >memory.limit_in_bytes && echo 30000 >memory.usage_in_bytes
        echo "total_inactive_file 5000" >memory.stat
      ]])
      local pipe = assert(io.popen "pwd")
      local here = pipe:read "l"
      pipe:close()
      local function run(limit)
        local command = "unshare -rm sh -c 'set -- %d; . \"%s\"; cd \"%s\"; %s greedy -m %s "
          .. "-p the -n 1' >'%s' 2>&1"
        local words = h.scratch "words"
        local _, _, code = os.execute(command:format(limit, script, here, h.program, path, words))
        return code, h.read(words)
      end
      local code, words = run(60000)
      assert.equal(1, code, words)
      assert(words:find "the weights: out of memory: %d%d%d%d%d+ bytes asked, 35000 are available",
        words)
      code, words = run(6000000)
      assert.equal(0, code, words)
    end)

  ;(can_mount and it or pending)("are not kept on a full disk", function()
    local folder = fresh "disk"
    sh("mkdir '%s'", folder)
    sh("unshare -rm sh -c 'mount -t tmpfs -o size=8m,mode=700 tmpfs \"%s\" "
      .. "&& head -c 7900000 /dev/zero >\"%s/x\" "
      .. "&& %s greedy -m %s -p the -n 4 --weight-cache \"%s\" --verbose "
      .. "&& ! ls \"%s\" | grep -q image' 2>'%s' >'%s'", folder, folder, h.program, path, folder,
      folder, h.scratch "words", h.scratch "text")
    local words = h.read(h.scratch "words")
    assert(words:find "weight cache: an image of %d+ bytes is more than the %d+ that", words)
  end)

  it("are kept once by starts at the same time", function()
    local folder = fresh "together"
    local one = ("%s greedy -m %s -p the -n 8 --quiet --weight-cache '%s'"):format(h.program, path,
      folder)
    sh("for i in 1 2 3 4 5; do %s >'%s'.$i & done; wait", one, h.scratch "out")
    for i = 2, 5 do
      assert.equal(h.read(h.scratch "out.1"), h.read(h.scratch("out." .. i)))
    end
    assert.same({1, 0}, {count(folder, "image$"), count(folder, "part")})
  end)
end)

describe("--verbose", function()
  it("tells weights, pages, scratch and how long loading took", function()
    local _, words = h.run(("greedy -m %s -p the -n 1 --device cpu --verbose"):format(path))
    assert(words:find("memory: weights %d+%.%d MB packed, %d+%.%d MB mapped; KV at most 1 of %d+ "
      .. "pages used, %d+%.%d MB each %(f16%); scratch %d+%.%d MB\n"), words)
    assert(words:find("load: hash %d%.%d+ s, weights from file %d%.%d+ s, all %d%.%d+ s, "
      .. "first token after %d%.%d+ s\n"), words)
    _, words = h.run(("score -m %s -p 'the one' --device ref --verbose"):format(path))
    assert(words:find "memory: weights 0.0 MB packed, 0.1 MB mapped", words)
  end)

  it("counts pages as used, and weights once", function()
    local model <close> = load {weight_cache = "off"}
    local before = model:memory()
    assert.same({0, 0}, {before.pages_used, before.pages_most})
    assert(before.packed_bytes > 0.8 * model.weight_bytes_step)
    assert(before.packed_bytes < 1.3 * model.weight_bytes_step)
    assert(before.scratch_bytes > 0)
    do
      local kv <close> = model:cache()
      model:forward(kv, ids)
    end
    assert.same({0, 1}, {model:memory().pages_used, model:memory().pages_most})
    local ref <close> = assert(llm.load(path, {device = "ref", pages = 8}))
    assert.same({0, true}, {ref:memory().packed_bytes, ref:memory().mapped_bytes > 90000})
  end)
end)
