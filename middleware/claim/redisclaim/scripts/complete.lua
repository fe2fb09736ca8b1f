-- Puts the marker in the lock's place if the lock is still the holder's; returns 1 then, else 0. The marker holds the
-- token too, so that a client that repeats the call because the answer was lost gets the same one.
-- KEYS: the key. ARGV: the holder's value, its marker, the marker's TTL in ms.
local value = redis.call('get', KEYS[1])
if value == ARGV[1] then
  redis.call('set', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return 1
end
if value == ARGV[2] then
  return 1
end
return 0
