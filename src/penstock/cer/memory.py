"""Open runs as bytes, one value per key, and back: what a key remembers of a pattern between two epochs.

A value holds the nodes its runs reach, the heads, and of the events only those that a match may still show. Everything in it is
numbered within the key, and nodes of the automaton are named by what they are, so it can be read by any worker in any order.

Layout, little-endian: head (version, checksum of the pattern, next place, counts of nodes, events, heads), nodes as rows of
``NODE``, heads (root, length, name), then the events column by column (``columns``).
"""

from __future__ import annotations

import pickle
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cer.plan import Pattern
from penstock.cer.recogniser import NODE, Recogniser
from penstock.cer.rowbytes import decode_rows, encode_rows
from penstock.cer.shape import places
from penstock.errors import StateError

VERSION = 1
_HEAD = struct.Struct("<BIqIIH")
_ROOT = struct.Struct("<iH")
_LINKS = ("prev", "left", "right")

Ints = NDArray[np.int64]


def checksum(pattern: Pattern) -> int:
    """Tells the state of another pattern apart."""
    automaton = pattern.automaton
    described = (
        automaton.tests,
        automaton.transitions,
        automaton.kinds,
        pattern.strategy,
        pattern.stops_at,
        pattern.window,
        pattern.needed,
    )
    return zlib.crc32(repr(described).encode())


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read for some keys.

    Attributes:
        events: the events that open runs need; those of one key stand together, in order.
        owner: int64[events], the index of each event's key.
        places: int64[keys], the place of each key's next event.
    """

    events: pa.RecordBatch
    owner: Ints
    places: Ints


def load(recogniser: Recogniser, values: list[bytes | None], check: int, schema: pa.Schema) -> Loaded:
    """Put the runs of some keys into an empty recogniser; key i gets row i.

    Args:
        recogniser: without runs.
        values: of each key what ``dump`` gave, or ``None``.
        check: the pattern's checksum.
        schema: the events' columns.

    Raises:
        StateError: A value was written for another pattern or by another version. Nothing was changed.
    """
    heads: list[tuple[int, int, int]] = []
    nodes, bodies, owner, counts = [], [], [], []
    places = np.zeros(len(values), np.int64)
    numbers: dict[bytes, int] = {}
    base = first = 0
    tables = recogniser.tables
    for row, value in enumerate(values):
        if value is None:
            continue
        version, other, place, n_nodes, n_events, n_heads = _HEAD.unpack_from(value)
        if version != VERSION or other != check:
            raise StateError(
                "The stored state of a pattern was written for another query, or by another version of penstock; give the changed "
                "pattern's region a new name, or start from a new checkpoint."
            )
        at = _HEAD.size + n_nodes * NODE.itemsize
        part = np.frombuffer(value, NODE, n_nodes, _HEAD.size).copy()
        for link in _LINKS:
            part[link] += np.where(part[link] >= 0, base, 0).astype(np.int32)
        part["pos"] += np.where(part["pos"] >= 0, first, -first).astype(np.int32)
        nodes.append(part)
        for _ in range(n_heads):
            root, size = _ROOT.unpack_from(value, at)
            at += _ROOT.size
            name = value[at : at + size]
            if name not in numbers:
                numbers[name] = tables.number(pickle.loads(name))
            heads.append((row, numbers[name], root + base))
            at += size
        bodies.append(memoryview(value)[at:])
        owner.append(row)
        counts.append(n_events)
        places[row] = place
        base += n_nodes
        first += n_events
    recogniser.rows(len(values))
    if nodes:
        recogniser.arena.put(np.concatenate(nodes))
        for row, node, root in heads:
            recogniser.heads[row, node] = root
    recogniser.first = first
    return Loaded(decode_rows(schema, bodies, counts), np.repeat(np.array(owner, np.int64), counts), places)


def dump(
    recogniser: Recogniser, events: pa.RecordBatch, owner: Ints, nexts: Ints, check: int, *, always: bool = False
) -> list[bytes | None]:
    """The runs of every key, right after ``Recogniser.keep``; ``None`` for a key without any.

    Args:
        recogniser: key i has row i.
        events: the events kept, by number.
        owner: int64[events], the index of each event's key.
        nexts: int64[keys], the place of each key's next event.
        check: the pattern's checksum.
        always: remember ``nexts`` for keys without open runs too.
    """
    n_keys = len(recogniser.heads)
    nodes = recogniser.arena.get()
    numbers = np.where(nodes["pos"] < 0, -1 - nodes["pos"], nodes["pos"])
    whose = owner[numbers] if len(nodes) else np.zeros(0, np.int64)
    order, ends = _grouped(whose, n_keys)
    place = np.empty(len(nodes), np.int64)
    place[order] = np.arange(len(nodes)) - ends[whose[order]]
    event_order, event_ends = _grouped(owner, n_keys)
    event_place = np.empty(len(owner), np.int64)
    event_place[event_order] = np.arange(len(owner)) - event_ends[owner[event_order]]
    if len(nodes):
        for link in _LINKS:
            nodes[link] = np.where(nodes[link] >= 0, place[nodes[link]], -1)
        nodes["pos"] = np.where(nodes["pos"] < 0, -1 - event_place[numbers], event_place[numbers])
    raw = nodes[order].tobytes()
    bodies = encode_rows(events.take(places(event_order)), event_ends)
    rows, columns = np.nonzero(recogniser.heads >= 0)
    roots = place[recogniser.heads[rows, columns]]
    begins = np.searchsorted(rows, np.arange(n_keys + 1)).tolist()
    names = [pickle.dumps(node, protocol=5) for node in recogniser.tables.nodes]
    pairs = list(zip(roots.tolist(), columns.tolist(), strict=True))
    size = NODE.itemsize
    out: list[bytes | None] = []
    bounds, event_bounds = ends.tolist(), event_ends.tolist()
    for key, upto in enumerate(nexts.tolist()):
        a, b = bounds[key], bounds[key + 1]
        mine = pairs[begins[key] : begins[key + 1]]
        if not mine and not always:
            out.append(None)
            continue
        head = _HEAD.pack(VERSION, check, upto, b - a, event_bounds[key + 1] - event_bounds[key], len(mine))
        ways = b"".join(_ROOT.pack(root, len(names[column])) + names[column] for root, column in mine)
        out.append(b"".join((head, raw[a * size : b * size], ways, bodies[key])))
    return out


def _grouped(owner: Ints, count: int) -> tuple[Ints, Ints]:
    """The order that puts each owner's things together, and where each owner's begin in it."""
    order = np.argsort(owner, kind="stable")
    return order, np.searchsorted(owner[order], np.arange(count + 1))


def describe(value: bytes, check: int, schema: pa.Schema) -> Any:
    """What a value holds, for people: how many partial matches there are, and the events they need."""
    version, other, _, n_nodes, n_events, n_heads = _HEAD.unpack_from(value)
    if version != VERSION or other != check:
        return "state of another pattern"
    at = _HEAD.size + n_nodes * NODE.itemsize
    for _ in range(n_heads):
        at += _ROOT.size + _ROOT.unpack_from(value, at)[1]
    return {"open": n_heads, "events": decode_rows(schema, [memoryview(value)[at:]], [n_events]).to_pylist()}
