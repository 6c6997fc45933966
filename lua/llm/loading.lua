-- The models that the options of the command line name.

local llm = require "llm"
local ending = require "llm.ending"
local shape = require "llm.shape"
local sys = require "llm.sys"

local loading = {}

local function load_opts(opt)
  local eog = opt.eog
  if opt.ignore_eog then eog = {} end
  return {device = opt.device, threads = opt.threads, ctx = opt.ctx, kv = opt.kv,
    pages = opt.pages, swap_pages = opt.swap_pages, max_rows = opt.max_rows, eog = eog,
    weight_cache = opt.weight_cache, cuda_lib = opt.cuda_lib, invariant = opt.invariant,
    f16_as_bf16 = opt.f16_as_bf16, gpu_layers = opt.gpu_layers}
end

local function load_model(path, opt)
  local name = shape.name(path)
  local model, message
  if name then model, message = shape.load(name, load_opts(opt))
  else model, message = llm.load(path, load_opts(opt)) end
  if model then return model end
  if sys.interrupted() then ending.exit(ending.INTERRUPTED, "interrupted") end
  ending.exit(ending.FAILURE, "%s", message)
end

-- Returns the model, and whether it is the built-in one. Options of type model become models.
function loading.models(opt, specs)
  local path = opt.model or os.getenv("LLMLUA_MODEL")
  if path == "" then path = nil end
  local model = load_model(path, opt)
  for _, spec in ipairs(specs) do
    if spec.type == "model" and opt[spec.name] then
      opt[spec.name] = load_model(opt[spec.name], opt)
    end
  end
  if model.device_note and not opt.quiet then ending.say("%s", model.device_note) end
  if opt.gpu_layers and not opt.quiet and not model.device:find "^cuda" then
    ending.say("--gpu-layers does nothing: no GPU is used, the model is on device %s", model.device)
  end
  if model.warning and not opt.quiet then ending.say("%s", model.warning) end
  if opt.verbose then io.stderr:write(model:describe(), "\n") end
  return model, path == nil
end

return loading
