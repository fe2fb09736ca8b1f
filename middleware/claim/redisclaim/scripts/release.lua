-- Deletes the lock if it is still the holder's; returns 1 then, else 0.
-- KEYS: the key. ARGV: the holder's value.
if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('del', KEYS[1])
end
return 0
