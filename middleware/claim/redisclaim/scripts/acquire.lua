-- Takes the lock unless someone has it or has completed the event, and returns what the key then holds. A client that
-- repeats the call because the answer was lost meets its own token.
-- KEYS: the key. ARGV: the holder's value, its TTL in ms.
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return ARGV[1]
end
return redis.call('get', KEYS[1])
