-- Options of scripts and of the command line, without a model.
local options = require "llm.options"

local declared = {
  beam = {default = 4, type = "integer", min = 1, help = "live beams"},
  length_penalty = 1.0,
  early_stopping = {default = false, choices = {false, true, "never"}},
  rows = {1, 4, 16},
  loud = true,
  name = "x",
  draft = {type = "model"},
}

local function parse(...)
  local specs = assert(options.collect(declared))
  return options.parse({...}, specs)
end

local function refused(message, ...)
  local values, text = parse(...)
  assert.is_nil(values)
  assert.equal(message, text)
end

describe("options", function()
  it("take the type of their default", function()
    local specs = options.collect(declared)
    local types = {}
    for name in pairs(declared) do types[name] = specs[name].type end
    assert.same({beam = "integer", length_penalty = "number", early_stopping = "choice",
      rows = "list", loud = "boolean", name = "string", draft = "model"}, types)
    assert.equal("integer", specs.rows.of)
  end)

  it("have their defaults where nothing is given", function()
    local values, given = parse()
    assert.equal(4, values.beam)
    assert.equal(1.0, values.length_penalty)
    assert.is_false(values.early_stopping)
    assert.same({1, 4, 16}, values.rows)
    assert.equal(256, values.max_tokens)
    assert.is_nil(values.temperature)
    assert.same({}, given)
  end)

  it("take the next argument, whatever it begins with", function()
    local values, given = parse("--length-penalty", "-1.0", "-p", "- item", "--stop", "--x")
    assert.equal(-1.0, values.length_penalty)
    assert.equal("- item", values.prompt)
    assert.same({"--x"}, values.stop)
    assert.same({length_penalty = true, prompt = true, stop = true}, given)
  end)

  it("are given as --name value, --name=value, -n value and -n5", function()
    assert.equal(5, parse("--max-tokens", "5").max_tokens)
    assert.equal(5, parse("--max-tokens=5").max_tokens)
    assert.equal(5, parse("-n", "5").max_tokens)
    assert.equal(5, parse("-n5").max_tokens)
    assert.equal("", parse("--prompt=").prompt)
    assert.equal("a=b", parse("--prompt=a=b").prompt)
  end)

  it("keep the last of several values, and all of a list", function()
    assert.equal(3, parse("--beam", "2", "--beam", "3").beam)
    assert.same({1, 2, 3}, parse("--rows", "1,2", "--rows", "[3]").rows)
    assert.same({"a,b", "c"}, parse("--stop", "a,b", "--stop", "c").stop)
  end)

  it("take 4.0 for an integer and 0 for a number", function()
    assert.equal("integer", math.type(parse("--beam", "4.0").beam))
    assert.equal(0, parse("--length-penalty", "0").length_penalty)
    refused("--beam: '4.5' is not an integer of at least 1", "--beam", "4.5")
  end)

  it("turn on and off", function()
    assert.is_true(parse().loud)
    assert.is_false(parse("--no-loud").loud)
    assert.is_false(parse("--loud=false").loud)
    assert.is_true(parse("--json").json)
    assert.is_false(parse("--json", "--no-json").json)
    refused("--json: '3' is not true or false", "--json=3")
    local values = parse("-n", "2", "--no-loud", "--quiet", "--no-json")
    assert.same({2, false, true, false}, {values.max_tokens, values.loud, values.quiet,
      values.json})
    refused("unknown option '--nope'", "--no-loud", "--nope")
    refused("unknown option '--no-beam'", "--no-beam")
    local help = options.help("x", "", options.collect(declared))
    assert(help:find("--no-loud turns it off", 1, true), help)
    assert(not help:find("--no-json", 1, true), help)
  end)

  it("take one of several choices as it is declared", function()
    assert.is_true(parse("--early-stopping", "true").early_stopping)
    assert.equal("never", parse("--early-stopping", "never").early_stopping)
    refused("--early-stopping: 'maybe' is not one of false, true, never", "--early-stopping=maybe")
    refused("--kv: 'f64' is not one of f32, f16, q8_0", "--kv", "f64")
  end)

  it("refuse what is no number or out of range, and say the range", function()
    refused("--beam: '0' is not an integer of at least 1", "--beam", "0")
    refused("--beam: 'x' is not an integer of at least 1", "--beam", "x")
    for _, bad in ipairs {"nan", "-nan", "inf", "-1", "", "1e999", "0x"} do
      local message = ("--temperature: '%s' is not a number of at least 0"):format(bad)
      refused(message, "--temperature", bad)
    end
    refused("--top-p: '1.5' is not a number from 0 to 1", "--top-p", "1.5")
    refused("--repetition-penalty: '0' is not a number above 0", "--repetition-penalty", "0")
    refused("--seed: '99999999999999999999' is not an integer", "--seed", "99999999999999999999")
    refused("--prompt-ids: '1,,2' is not a list of integers of at least 0", "--prompt-ids", "1,,2")
    refused("--prompt-ids: '1,-2' is not a list of integers of at least 0", "--prompt-ids", "1,-2")
    refused("--stop-rule: '/nonexistent' is not a file that can be read", "--stop-rule",
      "/nonexistent")
    refused("--stop-rule: '/tmp' is not a file that can be read", "--stop-rule", "/tmp")
  end)

  it("refuse what is unknown, and say what is near", function()
    refused("unknown option '--beem'; Did you mean '--beam'?", "--beem", "3")
    refused("unexpected argument 'foo'", "foo")
    refused("unexpected argument '--'", "--", "foo")
    refused("--max-tokens: a value is missing", "-n")
  end)

  it("check typed values as they check text", function()
    local specs = options.collect(declared)
    assert.equal(4, options.check(specs.beam, 4.0))
    assert.equal(4, options.check(specs.beam, "4"))
    assert.is_true(options.check(specs.early_stopping, true))
    assert.same({2, 3}, options.check(specs.rows, {2, 3.0}))
    assert.is_nil(options.check(specs.rows, {2, "x"}))
    assert.is_nil(options.check(specs.rows, {first = 2}))
    assert.is_nil(options.check(specs.name, 3))
    assert.is_nil(options.check(specs.loud, "maybe"))
  end)

  it("are refused where a script declares them wrongly", function()
    local function wrong(message, bad)
      local specs, text = options.collect(bad)
      assert.is_nil(specs)
      assert.equal(message, text)
    end
    wrong("option 'x': unknown type 'integr'", {x = {default = 1, type = "integr"}})
    wrong("option 'x': default: --x: 0 is not an integer of at least 1",
      {x = {default = 0, min = 1}})
    wrong("option 'x': unknown key 'hlep'; "
      .. "known: above, choices, default, help, least, max, min, of, split, type",
      {x = {default = 0, hlep = "?"}})
    wrong("option 'seed' of the script is a common option", {seed = 1})
    wrong("option 'A-b': names are lower case letters, digits and _", {["A-b"] = 1})
    wrong("options must be a table, got a number", 3)
    wrong("option 'partial': the name is taken", {partial = 1})
  end)

  it("raise where a strategy reads one that is not there", function()
    local specs = options.collect(declared)
    local opt = options.seal(parse(), specs)
    assert.is_nil(opt.temperature)
    assert.has_error(function() return opt.bean end)
  end)

  it("of a tool are its own and the common ones that it names", function()
    local specs = assert(options.collect(declared, {"model", "engine", "json"}))
    assert.is_table(specs.threads)
    assert.is_table(specs.help)
    assert.is_nil(specs.top_k)
    assert.is_nil(specs.max_tokens)
    assert.is_nil((options.parse({"--top-k", "3"}, specs)))
    local _, message = options.collect(declared, {"modle"})
    assert.equal("no common option 'modle'", message)
    local opt = options.seal(assert(options.parse({}, specs)), specs, options.common_names())
    assert.is_nil(opt.top_k)
  end)

  it("of a tool may come with arguments", function()
    local specs = assert(options.collect(declared, {"engine"}, "FILE…"))
    local values = options.parse({"a", "--beam", "3", "b", "-"}, specs)
    assert.same({"a", "b", "-"}, values.arguments)
    assert.equal(3, values.beam)
    assert(options.help("x", "", specs):find("Usage: llmlua x FILE… [options]", 1, true))
    local _, message = options.parse({"a", "--beem"}, specs)
    assert(message:find("unknown option '--beem'", 1, true), message)
  end)

  it("are all in --help", function()
    local specs = options.collect(declared)
    local help = options.help("x", "what it does", specs)
    assert(help:find("what it does", 1, true))
    for _, spec in ipairs(specs) do
      assert(help:find(options.flag(spec.name), 1, true), spec.name)
      assert(options.known(specs):find(options.flag(spec.name), 1, true), spec.name)
    end
  end)
end)
