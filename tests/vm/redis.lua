-- SPDX-License-Identifier: MIT
-- Copyright (c) 2026 The PMAlloc authors
--
-- The step of a number, in redis: in the guest (recipes.sh), and on the host (recipes.py).
local i = tonumber(ARGV[1])
redis.call('SET', 'at', i)
redis.call('SET', 's' .. i % 500, string.rep(i, 1 + i % 90))
redis.call('RPUSH', 'l' .. i % 20, i, string.rep('x', i % 300))
redis.call('HSET', 'h' .. i % 20, 'f' .. i % 90, i)
redis.call('ZADD', 'z' .. i % 10, i * 7 % 1000, 'm' .. i % 300)
redis.call('SADD', 'u' .. i % 10, i * 31 % 700, 'member' .. i % 90)
if i % 3 == 0 then redis.call('LPOP', 'l' .. i % 20, 4) end
if i % 4 == 0 then redis.call('DEL', 's' .. i * 3 % 500) end
if i % 5 == 0 then redis.call('ZREMRANGEBYRANK', 'z' .. i % 10, 0, 2) end
return i
