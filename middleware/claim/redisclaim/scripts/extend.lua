-- Gives the lock another TTL if it is still the holder's; returns 1 then, else 0.
-- KEYS: the key. ARGV: the holder's value, its TTL in ms.
if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('pexpire', KEYS[1], ARGV[2])
end
return 0
