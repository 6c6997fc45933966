-- What `llmlua --devices` prints: a line for each device, or why there is none.

local llm = require "llm"

local devices = {}

local GIB = 1 << 30

local function describe(info)
  if info.reason then return info.reason end
  local parts = {info.name}
  if info.memory and info.memory > 0 then
    parts[#parts + 1] = ("%.1f GiB, %.1f free"):format(info.memory / GIB, info.memory_free / GIB)
  end
  if info.compute then parts[#parts + 1] = "compute capability " .. info.compute end
  if info.driver then parts[#parts + 1] = ("driver for CUDA %s"):format(info.driver) end
  return table.concat(parts, ", ")
end

-- opts as llm.devices takes them. Returns the text.
function devices.show(opts)
  local lines = {}
  for i, info in ipairs(llm.devices(opts)) do
    lines[i] = ("%-6s  %s\n"):format(info.device, describe(info))
  end
  return table.concat(lines)
end

return devices
