"""Open runs as bytes, one value per key, and back: what a key remembers of a pattern between two epochs.

A value holds the nodes that the key's runs reach, the heads, and the events that a match may still show. Numbers are within the
key, and nodes of the automaton are named by their content, so any worker can read the value.

Layout, little-endian: head (version, checksum of the pattern, next place, counts of nodes, events, heads), nodes as rows of
``NODE``, heads (root, length, name), then the events column by column (``columns``).
"""

from __future__ import annotations

import pickle
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.arrow.columns import concat, concat_batches, conformed, to_indices
from penstock.arrow.rowbytes import Bytes, decode_rows, encode_rows, pieces, stretches
from penstock.errors import StateError
from penstock.patterns.plan import Pattern
from penstock.patterns.recogniser.recogniser import NODE, Recogniser
from penstock.sql_text.schema import on_one_line

VERSION = 1
_HEAD = np.dtype([("version", "u1"), ("check", "<u4"), ("place", "<i8"), ("nodes", "<u4"), ("events", "<u4"), ("heads", "<u2")])
_ROOT = np.dtype([("root", "<i4"), ("size", "<u2")])
_PACK_HEAD, _PACK_ROOT = struct.Struct("<BIqIIH"), struct.Struct("<iH")
_LINKS = ("prev", "left", "right")

Ints = NDArray[np.int64]


def checksum(pattern: Pattern, needed: tuple[str, ...] | None = None, *, as_written: bool = False) -> int:
    """A number that differs for the state of another pattern.

    Args:
        pattern: the pattern.
        needed: the events' columns, if they were others than today's.
        as_written: with the white space of conditions, as it was before that made no other pattern.
    """
    automaton = pattern.automaton
    described = (
        automaton.tests,
        automaton.transitions,
        automaton.kinds,
        pattern.strategy,
        pattern.scope,
        pattern.consume,
        pattern.limit,
        pattern.evaluated if as_written else tuple(map(on_one_line, pattern.evaluated)),
        pattern.stops_at,
        pattern.window,
        pattern.needed if needed is None else needed,
        *pattern.streams,
        *automaton.relations,
        *automaton.gaps,
        *(["in time"] if pattern.window is None and pattern.in_time else []),
    )
    return zlib.crc32(repr(described).encode())


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read for some keys.

    Attributes:
        events: the events that open runs need, by key, in order.
        owner: int64[events], the index of each event's key.
        places: int64[keys], the place of each key's next event.
    """

    events: pa.RecordBatch
    owner: Ints
    places: Ints


@dataclass(frozen=True)
class Forms:
    """What stored values are of: the pattern's checksums, of today and as written, and the events' columns; of today, the last, and of before the
    flow was changed.

    The number of a form is in the head of a value, added to the version.
    """

    checks: tuple[tuple[int, int], ...]
    schemas: tuple[pa.Schema, ...]

    @property
    def version(self) -> int:
        """The version in the head of values of today."""
        return VERSION + len(self.checks) - 1


def forms(pattern: Pattern, schemas: Sequence[pa.Schema]) -> Forms:
    """The forms of a pattern's values, of the events' columns that there ever were, today's last."""
    columns = [tuple(schema.names) for schema in schemas]
    return Forms(tuple((checksum(pattern, c), checksum(pattern, c, as_written=True)) for c in columns), tuple(schemas))


def load(recogniser: Recogniser, values: list[bytes | None], known: Forms) -> Loaded:
    """Put the runs of some keys into an empty recogniser; key i gets row i.

    Args:
        recogniser: without runs.
        values: for each key what ``dump`` returned, or ``None``.
        known: the forms that values may have.

    Raises:
        StateError: A value was written for another pattern or by another version. Nothing was changed.
    """
    there = np.array([row for row, value in enumerate(values) if value is not None], np.int64)
    held = [value for value in values if value is not None]
    raw = np.frombuffer(b"".join(held), np.uint8)
    sizes = np.array([len(value) for value in held], np.int64)
    at = np.cumsum(sizes) - sizes
    head = pieces(raw, at, np.full(len(held), _HEAD.itemsize)).view(_HEAD)
    form = head["version"].astype(np.int64) - VERSION
    there_is = (form >= 0) & (form < len(known.checks))
    if not there_is.all() or (head["check"][:, None] != np.array(known.checks)[form]).all(axis=1).any():
        raise StateError(
            "The stored state of a pattern was written for another query, or by another version of penstock; start the changed flow "
            "with a new checkpoint and new targets."
        )
    at += _HEAD.itemsize
    n_nodes, n_events = head["nodes"].astype(np.int64), head["events"].astype(np.int64)
    nodes = pieces(raw, at, n_nodes * NODE.itemsize).view(NODE).copy()
    at += n_nodes * NODE.itemsize
    base, first = np.cumsum(n_nodes) - n_nodes, np.cumsum(n_events) - n_events
    for link in _LINKS:
        nodes[link] += np.where(nodes[link] >= 0, np.repeat(base, n_nodes), 0).astype(np.int32)
    shift = np.repeat(first, n_nodes)
    nodes["pos"] += np.where(nodes["pos"] >= 0, shift, -shift).astype(np.int32)
    recogniser.rows(len(values))
    recogniser.arena.put(nodes)
    _load_heads(recogniser, raw, at, head["heads"].astype(np.int64), there, base)
    places = np.zeros(len(values), np.int64)
    places[there] = head["place"]
    recogniser.first = int(n_events.sum())
    return Loaded(_events(known, form, raw, at, n_events), np.repeat(there, n_events), places)


def _events(known: Forms, form: Ints, raw: Bytes, at: Ints, counts: Ints) -> pa.RecordBatch:
    """The events of all keys in today's columns; those that they lack are null."""
    now = known.schemas[-1]
    kinds = np.unique(form).tolist()
    if kinds in ([], [len(known.schemas) - 1]):
        return decode_rows(now, raw, at, counts)
    parts, owners = [], []
    for kind in kinds:
        mine = np.flatnonzero(form == kind)
        parts.append(conformed(decode_rows(known.schemas[kind], raw, at[mine], counts[mine]), now))
        owners.append(np.repeat(mine, counts[mine]))
    return concat_batches(parts).take(to_indices(np.argsort(np.concatenate(owners), kind="stable")))


def _load_heads(recogniser: Recogniser, raw: Bytes, at: Ints, counts: Ints, rows: Ints, base: Ints) -> None:
    """Set the heads: the first of all keys, then the second of all, and so on. ``at`` is moved past them."""
    tables = recogniser.tables
    for nth in range(int(counts.max(initial=0))):
        mine = np.flatnonzero(counts > nth)
        root = pieces(raw, at[mine], np.full(len(mine), _ROOT.itemsize)).view(_ROOT)
        at[mine] += _ROOT.itemsize
        size = root["size"].astype(np.int64)
        for length in np.unique(size).tolist():
            these = size == length
            text: Any = pieces(raw, at[mine[these]], size[these])
            names = pa.Array.from_buffers(pa.binary(length), int(these.sum()), [None, pa.py_buffer(text)]).dictionary_encode()
            kinds: list[Any] = names.dictionary.to_pylist()
            numbers = np.array([tables.number(pickle.loads(kind)) for kind in kinds], np.int64)
            recogniser.rows(0)  # a new node may have widened the tables
            recogniser.heads[rows[mine[these]], numbers[names.indices.to_numpy()]] = root["root"][these] + base[mine[these]]
        at[mine] += size


def dump(recogniser: Recogniser, events: pa.RecordBatch, owner: Ints, nexts: Ints, known: Forms) -> list[bytes | None]:
    """The runs of every key, right after ``Recogniser.keep``; ``None`` for a key without any.

    Args:
        recogniser: key i has row i.
        events: the events kept, by number.
        owner: int64[events], the index of each event's key.
        nexts: int64[keys], the place of each key's next event.
        known: the forms; values get today's.
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
    rows, columns = np.nonzero(recogniser.heads >= 0)
    heads = np.bincount(rows, minlength=n_keys)
    head = np.empty(n_keys, _HEAD)
    head["version"], head["check"], head["place"], head["heads"] = known.version, known.checks[-1][0], nexts, heads
    head["nodes"], head["events"] = np.diff(ends), np.diff(event_ends)
    parts = [
        stretches(head.view(np.uint8), np.arange(n_keys + 1) * _HEAD.itemsize),
        stretches(nodes[order].view(np.uint8), ends * NODE.itemsize),
        _ways(recogniser, place[recogniser.heads[rows, columns]], columns, heads),
        encode_rows(events.take(to_indices(event_order)), event_ends),
    ]
    values: list[bytes | None] = concat(*parts).to_pylist()
    return [value if there else None for value, there in zip(values, heads.tolist(), strict=True)]


def _ways(recogniser: Recogniser, roots: Ints, columns: Ints, heads: Ints) -> Any:
    """The heads of every key as an Arrow array (large_binary): root, length of the node's name, name. ``heads``: how many per
    key.
    """
    names = pa.array([pickle.dumps(node, protocol=5) for node in recogniser.tables.nodes], pa.large_binary())
    root = np.empty(len(roots), _ROOT)
    root["root"], root["size"] = roots, pc.binary_length(names).to_numpy()[columns]
    ways = concat(stretches(root.view(np.uint8), np.arange(len(root) + 1) * _ROOT.itemsize), names.take(to_indices(columns)))
    _, offsets, data = ways.buffers()
    ends = np.frombuffer(offsets, np.int64, len(root) + 1)
    return stretches(data or b"", ends[np.concatenate([[0], np.cumsum(heads)])])


def _grouped(owner: Ints, count: int) -> tuple[Ints, Ints]:
    """The order that groups entries by owner, and the first of each owner."""
    order = np.argsort(owner, kind="stable")
    return order, np.searchsorted(owner[order], np.arange(count + 1))


def describe(value: bytes, known: Forms) -> Any:
    """A value for people: the number of open heads, and the events that they need."""
    version, other, _, n_nodes, n_events, n_heads = _PACK_HEAD.unpack_from(value)
    form = version - VERSION
    if not 0 <= form < len(known.checks) or other not in known.checks[form]:
        return "state of another pattern"
    at = _PACK_HEAD.size + n_nodes * NODE.itemsize
    for _ in range(n_heads):
        at += _PACK_ROOT.size + _PACK_ROOT.unpack_from(value, at)[1]
    events = decode_rows(known.schemas[form], np.frombuffer(value, np.uint8), np.array([at]), np.array([n_events]))
    return {"open": n_heads, "events": events.to_pylist()}
