local llm = require "llm"

local inf = math.huge

local function fails(pattern, f, ...)
  local ok, err = pcall(f, ...)
  assert.is_false(ok)
  assert.equal("misuse", err.kind, tostring(err))
  assert(err.message:find(pattern), err.message)
end

local function near(expected, got, tolerance)
  if type(expected) == "table" then
    assert.equal(#expected, #got)
    for i = 1, #expected do near(expected[i], got[i], tolerance) end
  else
    assert(expected == got or math.abs(expected - got) <= (tolerance or 1e-5) * math.max(1,
      math.abs(expected)),
      ("expected %s, got %s"):format(expected, got))
  end
end

-- A matrix of numbers that repeat nowhere.
local function matrix(n_rows, n_columns, salt)
  local list = {}
  for r = 1, n_rows do
    list[r] = {}
    for c = 1, n_columns do list[r][c] = math.floor(math.sin(r * 12.9898 + c * 78.233 + (salt
      or 0)) * 4096) / 512 end
  end
  return list
end

local function map(list, f)
  local out = {}
  for r, row in ipairs(list) do
    out[r] = {}
    for c, x in ipairs(row) do out[r][c] = f(x, r, c) end
  end
  return out
end

describe("llm.tensor", function()
  it("makes a matrix of a list of rows and a column of a flat list", function()
    local t = llm.tensor {{1, 2, 3}, {4, 5, 6}}
    assert.same({2, 3, "i32", false}, {t.n_rows, t.n_columns, t.dtype, t.is_logits})
    assert.same({{1, 2, 3}, {4, 5, 6}}, t:lists())
    local column = llm.tensor {1.5, 2, 3}
    assert.same({3, 1, "f32"}, {column.n_rows, column.n_columns, column.dtype})
    assert.same({1.5, 2, 3}, column:tolist())
  end)

  it("is i32 for integers of 32 bits only", function()
    assert.equal("i32", llm.tensor({1, -2147483648, 2147483647}).dtype)
    assert.equal("f32", llm.tensor({1, 2.0}).dtype)
    assert.equal("f32", llm.tensor({1, 2147483648}).dtype)
    assert.equal("f32", llm.tensor({1, 2}, "f32").dtype)
    assert.equal("i32", llm.tensor({1, 2.0}, "i32").dtype)
    assert.equal("integer", math.type(llm.tensor({7})[1]))
    assert.equal("float", math.type(llm.tensor({7}, "f32")[1]))
    fails("list%[2%] must be an integer, got 2.5", llm.tensor, {1, 2.5}, "i32")
    fails("does not fit 32 bits: 2147483648", llm.tensor, {1, 2147483648}, "i32")
    fails("unknown dtype f16; known: f32, i32", llm.tensor, {1}, "f16")
  end)

  it("takes infinities and NaN", function()
    local list = llm.tensor({{inf, -inf, 0 / 0}}):tolist()
    assert.same({inf, -inf}, {list[1], list[2]})
    assert(list[3] ~= list[3])
  end)

  it("refuses what is no list of numbers, naming the entry", function()
    fails("list%[1%] has 2 entries, list%[2%] has 3", llm.tensor, {{1, 2}, {1, 2, 3}})
    fails("list%[2%]%[1%] must be a number, got a string", llm.tensor, {{1}, {"2"}})
    fails("list%[2%] must be a number, got a table", llm.tensor, {1, {2}})
    fails("list%[2%] must be a list as list%[1%] is, got 2", llm.tensor, {{1}, 2})
    fails("list is an empty list", llm.tensor, {})
    fails("list%[1%] is an empty list", llm.tensor, {{}})
    fails("list must be a table, got 5", llm.tensor, 5)
    fails("list must be a table, got nil", llm.tensor)
  end)

  it("copies a tensor", function()
    local a = llm.tensor {{1, 2}}
    local b, c = llm.tensor(a), llm.logits(llm.tensor {{1.5, 2}})
    b:add_(1)
    assert.same({1, 2}, a:tolist())
    assert.same({2, 3}, b:tolist())
    assert.is_true(c.is_logits)
    assert.is_false(llm.tensor(c).is_logits)
    fails("not of f32", llm.logits, a)
  end)
end)

describe("reading a Tensor", function()
  local m = llm.tensor {{1, 2, 3}, {4, 5, 6}}

  it("by index gives entries of a row or a column, and rows of a matrix", function()
    assert.equal(3, #llm.tensor {{7, 8, 9}})
    assert.equal(8, llm.tensor({{7, 8, 9}})[2])
    assert.equal(3, #llm.tensor {7, 8, 9})
    assert.equal(9, llm.tensor({7, 8, 9})[3.0])
    assert.equal(2, #m)
    assert.same({4, 5, 6}, m[2]:tolist())
    assert.equal(6, m[2][3])
    fails("index must be 1 to 3, got 4", function() return llm.tensor({7, 8, 9})[4] end)
    fails("index must be 1 to 2, got 0", function() return m[0] end)
    fails("index must be an integer, got 1.5", function() return m[1.5] end)
    assert.is_nil(m.nothing)
  end)

  it("as lists", function()
    assert.same({{1, 2, 3}, {4, 5, 6}}, m:tolist())
    assert.same({4, 5}, llm.tensor({{4}, {5}}):tolist())
    assert.same({{4}, {5}}, llm.tensor({{4}, {5}}):lists())
    assert.same({4, 5}, llm.tensor({{4, 5}}):tolist())
    assert.same({{4, 5}}, llm.tensor({{4, 5}}):lists())
  end)

  it("as the one item", function()
    assert.equal(5, llm.tensor({{5}}):item())
    fails("item%(%) of a tensor of 2 x 3 entries", m.item, m)
  end)

  it("as text", function()
    assert.equal("llm.Tensor 2 x 3 i32 {{1, 2, 3}, {4, 5, 6}}", tostring(m))
    assert.equal("llm.Logits 1 x 2 f32 {{0.5, -inf}}", tostring(llm.logits {{0.5, -inf}}))
    assert(tostring(llm.tensor(matrix(9, 40))):find "…}, …}$")
  end)
end)

describe("a closed Tensor", function()
  it("refuses everything but close and tostring", function()
    local t = llm.tensor {{1}}
    t:close()
    t:close()
    assert.equal("llm.Tensor (closed)", tostring(t))
    for name, method in pairs(debug.getmetatable(t).__methods) do
      if name ~= "close" and type(method) == "function" then
        fails("tensor is closed", method, t, llm.tensor {{1}}, llm.tensor {{1}})
      end
    end
    fails("tensor is closed", function() return t[1] end)
    fails("tensor is closed", function() return #t end)
    fails("tensor is closed", function() return t.n_rows end)
    fails("tensor is closed", function() return 1 + t end)
    fails("tensor is closed", function() return llm.tensor {{1}} + t end)
  end)

  it("is what a scope's end leaves", function()
    local kept
    do
      local t <close> = llm.tensor {{1}}
      kept = t
    end
    assert.equal("llm.Tensor (closed)", tostring(kept))
  end)
end)

describe("arithmetic of Tensors", function()
  local a, b = matrix(3, 5), matrix(3, 5, 1)
  local A, B = llm.tensor(a), llm.tensor(b)

  it("works entry by entry", function()
    near(map(a, function(x, r, c) return x + b[r][c] end), (A + B):lists())
    near(map(a, function(x, r, c) return x - b[r][c] end), (A - B):lists())
    near(map(a, function(x, r, c) return x * b[r][c] end), (A * B):lists())
    near(map(a, function(x, r, c) return x / b[r][c] end), (A / B):lists())
    near(map(a, function(x) return x ^ 2 end), (A ^ 2):lists())
    near(map(a, function(x) return 2 ^ x end), (2 ^ A):lists())
    near(map(a, function(x) return -x end), (-A):lists())
    near(map(a, function(x) return 1 - x end), (1 - A):lists())
    near(map(a, function(x) return x / 4 end), (A / 4):lists())
    near(map(a, function(x) return math.exp(x) end), A:exp():lists())
    near(map(a, function(x) return math.log(math.abs(x)) end), A:abs():log():lists())
    near(map(a, function(x) return math.sqrt(math.abs(x)) end), A:abs():sqrt():lists())
    near(map(a, function(x) return math.min(1, math.max(-2, x)) end), A:clamp(-2, 1):lists())
    near(map(a, function(x) return math.max(-2, x) end), A:clamp(-2):lists())
    near(map(a, function(x) return math.min(1, x) end), A:clamp(nil, 1):lists())
  end)

  it("repeats a row over rows, a column or a flat list over columns", function()
    local row, column = llm.tensor {{1, 2, 3, 4, 5.5}}, llm.tensor {10, 20, 30.5}
    near(map(a, function(x, _, c) return x + row[c] end), (A + row):lists())
    near(map(a, function(x, r) return x * column[r] end), (A * column):lists())
    near(map(a, function(x, r) return x - column[r] end), (A - {10, 20, 30.5}):lists())
    near(map(a, function(x, r) return column[r] - x end), ({10, 20, 30.5} - A):lists())
    near(map(a, function(x, _, c) return row[c] - x end), ({{1, 2, 3, 4, 5.5}} - A):lists())
    fails("3", function() return A + llm.tensor {1, 2} end)
    fails("right operand must be a number, a tensor or a list, got a string", function()
      return A + "1" end)
    fails("left operand must be a number, a tensor or a list, got a string", function()
      return "1" + A end)
    fails("got nil", function() return A + nil end)
  end)

  it("stays i32 where it is exact", function()
    local i = llm.tensor {{3, -4}}
    assert.equal("i32", (i + 1).dtype)
    assert.equal("i32", (i - i).dtype)
    assert.equal("i32", (2 * i).dtype)
    assert.same({4, -3}, (i + 1):tolist())
    assert.equal("f32", (i + 1.5).dtype)
    assert.equal("f32", (i / 2).dtype)
    assert.equal("f32", (i ^ 2).dtype)
    assert.same({1.5, -2}, (i / 2):tolist())
  end)

  it("compares to 1 and 0", function()
    local t = llm.tensor {{1, 2, 3}}
    assert.same({1, 0, 0}, t:lt(2):tolist())
    assert.same({1, 1, 0}, t:le(2):tolist())
    assert.same({0, 0, 1}, t:gt(2):tolist())
    assert.same({0, 1, 1}, t:ge(2):tolist())
    assert.same({0, 1, 0}, t:eq(2):tolist())
    assert.same({0, 1, 1}, t:eq(llm.tensor {{5, 2, 3}}):tolist())
  end)

  it("chooses by a condition", function()
    local t = llm.tensor {{1, 2, 3}, {4, 5, 6.5}}
    assert.same({{1, 0, 0}, {0, 5, 6.5}}, t:where(llm.tensor {{1, 0, 0}, {0, 2, -1}}, 0):lists())
    assert.same({{1, 2, 3}, {9, 9, 9}}, t:where({1, 0}, 9):lists())
    assert.same({{-inf, 2, 3}, {4, 5, 6.5}}, t:where(t:gt(1), -inf):lists())
  end)

  it("leaves its operands as they were, and in place changes the first only", function()
    local t = llm.tensor(a)
    local before = t:lists()
    for name, arguments in pairs {add = {B}, sub = {2.5}, mul = {{1, 2, 3}}, div = {B}, pow = {2},
      exp = {}, abs = {},
      neg = {}, clamp = {-1, 1}, softmax = {}, log_softmax = {}, sort = {}, cumsum = {},
        normalize = {},
      where = {B, 0}} do
      local out = t[name](t, table.unpack(arguments))
      assert.same(before, t:lists(), name)
      local same = t:copy()
      assert.equal(same, same[name .. "_"](same, table.unpack(arguments)))
      assert.same(out:lists(), same:lists(), name)
    end
    assert.same(b, B:lists())
  end)

  it("refuses to grow in place", function()
    local row = llm.tensor {{1, 2, 3}}
    fails("", row.add_, row, llm.tensor {1, 2})
    assert.same({1, 2, 3}, row:tolist())
  end)
end)

describe("rows of a Tensor", function()
  local a = matrix(4, 7)
  local A = llm.tensor(a)

  local function per_row(f)
    local out = {}
    for r, row in ipairs(a) do out[r] = f(row) end
    return out
  end
  local function sum_exp(row)
    local s = 0
    for _, x in ipairs(row) do s = s + math.exp(x) end
    return s
  end

  it("reduce to columns", function()
    near(per_row(function(row) return math.max(table.unpack(row)) end), A:max():tolist())
    near(per_row(function(row) return math.min(table.unpack(row)) end), A:min():tolist())
    local function sum(row)
      local s = 0
      for _, x in ipairs(row) do s = s + x end
      return s
    end
    near(per_row(sum), A:sum():tolist())
    near(per_row(function(row) return math.log(sum_exp(row)) end), A:logsumexp():tolist())
    near(per_row(function(row)
      local h, s = 0, sum_exp(row)
      for _, x in ipairs(row) do h = h - math.exp(x) / s * math.log(math.exp(x) / s) end
      return h
    end), A:entropy():tolist(), 1e-4)
    near(per_row(function(row)
      local mean, v = sum(row) / #row, 0
      for _, x in ipairs(row) do v = v + (x - mean) ^ 2 end
      return math.sqrt(v / #row)
    end), A:std():tolist())
    assert.same({4, 1}, {A:max().n_rows, A:max().n_columns})
  end)

  it("count finite entries only in std, and nothing for -inf in entropy", function()
    near({0.5}, llm.tensor({{1, 2, -inf}}):std():tolist())
    near({math.log(2)}, llm.tensor({{1, 1, -inf}}):entropy():tolist())
    near({math.log(2)}, llm.tensor({{0, 0, -inf}}):logsumexp():tolist())
  end)

  it("become probabilities", function()
    near(map(a, function(x, r) return math.exp(x) / sum_exp(a[r]) end), A:softmax():lists())
    near(map(a, function(x, r) return x - math.log(sum_exp(a[r])) end), A:log_softmax():lists())
    assert.equal(-inf, llm.tensor({{1, -inf}}):log_softmax()[2])
    assert.same({1, 0}, llm.tensor({{1, -inf}}):softmax():tolist())
  end)

  it("are sorted, summed up and normalised", function()
    assert.same({{1, 2, 3.5}}, llm.tensor({{3.5, 1, 2}}):sort():lists())
    assert.same({{3.5, 4.5, 6.5}}, llm.tensor({{3.5, 1, 2}}):cumsum():lists())
    near({{0.6, 0.8}}, llm.tensor({{3.0, 4}}):normalize():lists())
  end)
end)

describe("shapes of Tensors", function()
  local a = llm.tensor {{1, 2, 3}, {4, 5, 6}}

  it("multiply, transpose and join", function()
    assert.same({{14, 32}, {32, 77}}, a:matmul(a:t()):lists())
    assert.same({{3}, {9}}, a:matmul({{0}, {0.0}, {1}}):matmul({{1.0}}):add({0, 3}):lists())
    assert.same({{1, 4}, {2, 5}, {3, 6}}, a:t():lists())
    assert.same({{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}, a:cat({{7, 8, 9}}):lists())
    assert.same({{1, 2, 3, 7}, {4, 5, 6, 8}}, a:cat({7, 8}, 2):lists())
    fails("", a.cat, a, llm.tensor {{1}})
    fails("", a.matmul, a, a)
    fails("dim must be 1 to 2, got 3", a.cat, a, a, 3)
  end)

  it("take rows and columns, as copies", function()
    assert.same({{4, 5, 6}, {1, 2, 3}, {4, 5, 6}}, a:rows({2, 1, 2}):lists())
    assert.same({{4, 5, 6}}, a:rows(llm.tensor {2}):lists())
    assert.same({4, 5, 6}, a:row(2):tolist())
    assert.same({{2, 3}, {5, 6}}, a:narrow(2, 2, 2):lists())
    assert.same({{4, 5, 6}}, a:narrow(1, 2, 1):lists())
    local copy = a:row(1)
    copy:add_(1)
    assert.same({1, 2, 3}, a[1]:tolist())
    fails("rows%[2%] must be 1 to 2, got 3", a.rows, a, {1, 3})
    fails("row must be 1 to 2, got 0", a.row, a, 0)
    fails("count must be 1 to 2, got 3", a.narrow, a, 2, 2, 3)
    fails("first must be 1 to 3, got 0", a.narrow, a, 2, 0, 1)
    fails("rows is an empty list", a.rows, a, {})
  end)
end)

describe("columns of a Tensor", function()
  local a = llm.tensor {{1, 5, 3}, {9, 7, 8}}

  it("count from 1", function()
    assert.same({2, 1}, a:argmax():tolist())
    local scores, ids = a:topk(2)
    assert.same({{5, 3}, {9, 8}}, scores:lists())
    assert.same({{2, 3}, {1, 3}}, ids:lists())
    assert.same({{5}, {7}}, a:gather(2):lists())
    assert.same({{1, 6, 3}, {9, 8, 8}}, a:add_at(2, 1):lists())
    fails("", a.gather, a, 0)
    fails("", a.gather, a, 4)
  end)
end)

describe("memory of Tensors", function()
  it("comes back by collection and by close", function()
    local list = {{}}
    for i = 1, 10000 do list[1][i] = i end
    local t = llm.tensor(list, "f32")
    collectgarbage()
    collectgarbage()
    for _ = 1, 2000 do t = t + 1 end
    assert.equal(2001, t:narrow(2, 1, 1):item())
    collectgarbage()
    collectgarbage()
    assert(llm.stats().tensor_bytes < 2000 * 40000, llm.stats().tensor_bytes)
  end)

  it("that ran out is tried once more after a collection", function()
    if not llm.fault then return pending "needs a build with LLMLUA_FAULTS" end
    local t = llm.tensor {{1, 2, 3}}
    llm.fault(1)
    local ok, err = pcall(t.add, t, 1)
    assert.is_false(ok)
    assert.equal("out_of_memory", err.kind)
    llm.fault(1, true)
    assert.same({2, 3, 4}, t:add(1):tolist())
    llm.fault(0)
  end)

  it("is safe when a finalizer of the script closes an operand", function()
    for _ = 1, 50 do
      local x, y = llm.tensor {{1, 2, 3}}, llm.tensor {{4, 5, 6}}
      for _ = 1, 20 do setmetatable({}, {__gc = function() y:close() end}) end
      collectgarbage "step"
      for _ = 1, 20 do
        local ok, sum = pcall(function() return (x + y):tolist() end)
        if ok then assert.same({5, 7, 9}, sum) else assert.equal("tensor is closed", sum.message)
          end
      end
    end
  end)
end)
