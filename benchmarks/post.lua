-- Sends ready-made requests of one length from a file, one after the other.
-- Arguments after `--`: the file, the length of each request, how many to pass by first.
local file, length

function init(args)
   file = assert(io.open(args[1], "rb"))
   length = tonumber(args[2])
   file:seek("set", length * tonumber(args[3]))
end

function request()
   local text = file:read(length)
   if text == nil then
      file:seek("set")
      text = file:read(length)
   end
   return text
end
