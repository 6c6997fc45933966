-- Where scripts are found, and what their file says.

local sys = require "llm.sys"

local scripts = {}

-- Names of the bundled scripts, without folder and ".lua".
function scripts.bundled()
  local names = {}
  for _, file in ipairs(sys.files()) do names[#names + 1] = file:match("^scripts/([^/]+)%.lua$") end
  table.sort(names)
  return names
end

local function read_file(path)
  local file, message = io.open(path, "rb")
  if not file then return nil, message end
  local source, wrong = file:read("a")
  file:close()
  return source, wrong
end

-- The script of that name: a path, or else a bundled one ("beam", "beam.lua", "scripts/beam.lua").
-- Returns {source, chunk_name, name, folder (nil if bundled)}; or nil, message.
function scripts.find(name)
  local script
  if sys.path_kind(name) == "file" then
    local source, message = read_file(name)
    if not source then return nil, message end
    script = {source = source, chunk_name = "@" .. name, folder = name:match("^(.*)/[^/]*$") or "."}
  else
    local short = name:gsub("^scripts/", ""):gsub("%.lua$", "")
    local source = sys.file(("scripts/%s.lua"):format(short))
    if not source then
      return nil, ("no script '%s'; bundled: %s"):format(name,
        table.concat(scripts.bundled(), ", "))
    end
    script = {source = source, chunk_name = ("@scripts/%s.lua"):format(short)}
  end
  script.source = script.source:gsub("^#[^\n]*", "")
  script.name = name:match("([^/]+)$"):gsub("%.lua$", "")
  return script
end

-- Makes `require` look into the folder of a script, before the bundled modules; samplers are looked
-- for there too (scripts.folder).
function scripts.add_folder(folder)
  scripts.folder = folder
  table.insert(package.searchers, 2, function(module)
    local tried = {}
    for _, form in ipairs {"%s/%s.lua", "%s/%s/init.lua"} do
      local path = form:format(folder, (module:gsub("%.", "/")))
      if sys.path_kind(path) == "file" then
        local chunk, message = loadfile(path)
        if not chunk then error(message, 0) end
        return chunk, path
      end
      tried[#tried + 1] = ("no file '%s'"):format(path)
    end
    return table.concat(tried, "\n\t")
  end)
end

-- The file as a function in these globals (default: the real ones); or nil, message.
function scripts.load(script, env)
  return load(script.source, script.chunk_name, "t", env or _G)
end

return scripts
