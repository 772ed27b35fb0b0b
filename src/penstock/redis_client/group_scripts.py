"""One Lua script for each atomic step of a group. Only the server's clock is read, inside the scripts, and nothing is sent of any other clock.

Each script names all its keys, and those of one script have one text in braces, so that a cluster can run it. What a step means is told in
`penstock.protocol.group.store`; the rules S1 to S7 are that module's.

The membership hash has fields `document` (JSON), `epoch`, `editor`, and `seen_ms`: when a member of the group has beaten last. The hash of a
partition has `token`, `position`, `taken` (epoch of the document by which it was taken), `taken_ms`, while it is owned `owner` (an incarnation) and
`member`, and `added`: a position, and how many entries the stream had ever been given up to there; it says nothing of any other position. A key of another kind at that place is left alone; the script answers FOREIGN.
"""

from __future__ import annotations

from typing import Final

CHANGES_KEPT: Final = 1000
"""About so many announcements are kept."""

_NOW = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_OURS = """
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and (kind ~= 'hash' or redis.call('HEXISTS', KEYS[1], 'token') == 0) then
  return redis.error_reply('FOREIGN ' .. kind)
end
"""

_LATER = """
local function parts(id)
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  return ms, seq
end
local function above(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end
local function is_later(one, other)
  local a, b = parts(one)
  local c, d = parts(other)
  if a ~= c then return above(a, c) end
  return b ~= d and above(b, d)
end
"""

EDIT: Final = (
    _NOW
    + f"""
-- KEYS: membership, alive, changes. ARGV: expected epoch, epoch, editor, document, then for each member its incarnation and its lease in ms
if (redis.call('HGET', KEYS[1], 'epoch') or '0') ~= ARGV[1] then return 0 end
local inside = {{}}
for i = 5, #ARGV, 2 do inside[ARGV[i]] = true end
local known, names = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'), nil
for i = 1, #known, 2 do
  if not inside[known[i]] and known[i] ~= ARGV[3] and tonumber(known[i + 1]) > now then  -- S7
    names = names or {{cjson.decode(redis.call('HGET', KEYS[1], 'document') or '{{}}'), cjson.decode(ARGV[4])}}
    for name, entry in pairs(names[1].members or {{}}) do
      if entry.incarnation == known[i] and not names[2].members[name] then return 0 end
    end
  end
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', {CHANGES_KEPT}, '*', 'kind', 'changed', 'epoch', ARGV[2])
redis.call('HSET', KEYS[1], 'document', ARGV[4], 'epoch', ARGV[2], 'editor', ARGV[3])
for i = 1, #known, 2 do
  if not inside[known[i]] then redis.call('ZREM', KEYS[2], known[i]) end
end
for i = 5, #ARGV, 2 do redis.call('ZADD', KEYS[2], 'NX', now + ARGV[i + 1], ARGV[i]) end
return 1
"""
)

BEAT: Final = (
    _NOW
    + """
-- KEYS: membership, alive. ARGV: incarnation, lease in ms. Answer: epoch, editor, known, ms to the next deadline or -1, server, the dead…
local found = redis.call('HMGET', KEYS[1], 'epoch', 'editor', 'seen_ms')
if not found[1] then return {0, '', 0, -1, ''} end
local epoch, editor, seen, lease = tonumber(found[1]), found[2], tonumber(found[3] or '-1'), tonumber(ARGV[2])
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return {epoch, editor, 0, -1, ''} end
redis.call('HSET', KEYS[1], 'seen_ms', string.format('%d', now))
if now < seen or now - seen > lease then  -- S6
  local there = cjson.decode(redis.call('HGET', KEYS[1], 'document') or '{}')
  for _, entry in pairs(there.members or {}) do
    local own = entry.lease_ms or 0
    redis.call('ZADD', KEYS[2], 'XX', now + (own > 0 and own or lease), entry.incarnation)
  end
end
redis.call('ZADD', KEYS[2], now + lease, ARGV[1])
local said = redis.pcall('INFO', 'server')  -- an error where the user may not ask
local answer = {epoch, editor, 1, -1, type(said) == 'string' and string.match(said, 'run_id:(%w+)') or ''}
for _, incarnation in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%d', now))) do
  answer[#answer + 1] = incarnation
end
local coming = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%d', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
for i = 1, #coming, 2 do
  if coming[i] ~= ARGV[1] then answer[4] = tonumber(coming[i + 1]) - now break end
end
return answer
"""
)

ACQUIRE: Final = (
    _OURS
    + _NOW
    + _LATER
    + """
-- KEYS: the partition. ARGV: member, incarnation, epoch, instead of, token, position. Answer: what, and about it
local found = redis.call('HMGET', KEYS[1], 'owner', 'member', 'token', 'taken', 'position')
local owner, token, taken = found[1] or '', tonumber(found[3] or '0'), tonumber(found[4] or '0')
local position = found[5] or '0-0'
if taken > tonumber(ARGV[3]) then return {'stale', taken} end
if owner ~= '' and owner ~= ARGV[2] and owner ~= ARGV[4] then return {'busy', found[2] or '', owner, token} end
token = math.max(token + 1, tonumber(ARGV[5]) + 1, tonumber(ARGV[3]))
if is_later(ARGV[6], position) then position = ARGV[6] end
redis.call('HSET', KEYS[1], 'owner', ARGV[2], 'member', ARGV[1], 'token', string.format('%d', token), 'taken', ARGV[3],
  'taken_ms', string.format('%d', now), 'position', position)
return {'granted', token, position}
"""
)

RELEASE: Final = (
    _OURS
    + _LATER
    + """
-- KEYS: the partition. ARGV: incarnation, token, position. Answer: the owner, if it is fenced by this (S5), or nothing
local found = redis.call('HMGET', KEYS[1], 'owner', 'token', 'position')
local owner, token, position = found[1] or '', tonumber(found[2] or '0'), found[3] or '0-0'
local remembered, behind = tonumber(ARGV[2]), is_later(ARGV[3], position)
local fenced = false
if owner == ARGV[1] and token == remembered then
  redis.call('HDEL', KEYS[1], 'owner', 'member')
elseif owner == '' then
  token = math.max(token, remembered)
elseif owner ~= ARGV[1] and (remembered > token or behind) then
  token, fenced = math.max(token, remembered) + 1, owner  -- S5
end
if behind then position = ARGV[3] end
redis.call('HSET', KEYS[1], 'token', string.format('%d', token), 'position', position)
return fenced
"""
)

ACK: Final = (
    _OURS
    + _LATER
    + """
-- KEYS: the partition, its dead letters. ARGV: incarnation, token, position, entries added until there or nothing, then for each dead letter the
-- number of its words and they
local found = redis.call('HMGET', KEYS[1], 'owner', 'token', 'position')
if found[1] ~= ARGV[1] or found[2] ~= ARGV[2] then return 0 end
if not is_later(ARGV[3], found[3]) then return 1 end  -- the answer to it was lost
local at = 5
while ARGV[at] do
  local words = tonumber(ARGV[at])
  local command = {'XADD', KEYS[2], '*'}
  for i = at + 1, at + words do command[#command + 1] = ARGV[i] end
  redis.call(unpack(command))
  at = at + words + 1
end
redis.call('HSET', KEYS[1], 'position', ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'added', ARGV[3] .. ' ' .. ARGV[4]) end
return 1
"""
)

AGREE: Final = """
-- KEYS: the settings. ARGV: name, value, name, value… Answer: the first name that has another value, and that value; or nothing
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind ~= 'none' and kind ~= 'hash' then return redis.error_reply('FOREIGN ' .. kind) end
for i = 1, #ARGV, 2 do
  local there = redis.call('HGET', KEYS[1], ARGV[i])
  if there and there ~= ARGV[i + 1] then return {ARGV[i], there} end
end
for i = 1, #ARGV, 2 do redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[i + 1]) end
return {}
"""

__all__ = ["ACK", "ACQUIRE", "AGREE", "BEAT", "CHANGES_KEPT", "EDIT", "RELEASE"]
