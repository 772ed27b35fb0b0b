"""The contract of `penstock.sinks.base`, the same for every sink that holds a mark."""

from __future__ import annotations

import datetime as dt
import math
import threading
from decimal import Decimal

import pyarrow as pa
import pytest

from penstock import sinks
from penstock.errors import DeclarationError, FencedError, SinkAheadError, SinkError


class Crash(Exception):  # noqa: N818  (it is no error of penstock's)
    """Stands for the process dying."""


def crashing(*batches):
    yield from batches
    raise Crash


def opened(rig, make, *, run=1, epoch=-1, flow="flow-a", schema=None, **options):
    sink = rig.sink(**options)
    sink.open(make.mark(epoch, run=run, flow=flow), schema or make.schema)
    return sink


def test_every_sink_when_checked_then_is_a_sink(rig):
    assert isinstance(rig.sink(), sinks.Sink)
    assert rig.sink().durable is (rig.system != "memory")


def test_write_when_rows_then_rows_and_mark_are_stored_together(rig, make):
    sink = opened(rig, make)
    stored = sink.write([make.batch((1, "a"), (2, "b")), make.batch((3, "c"))], make.mark(0))
    assert stored == 3
    assert rig.rows() == [(1, "a"), (2, "b"), (3, "c")]
    assert rig.stored_epoch() == 0


def test_open_when_never_written_then_returns_none(rig, make):
    assert rig.sink().open(make.mark(-1), make.schema) is None
    assert rig.sink().open(make.mark(-1, run=2), make.schema) is None


def test_open_when_written_then_returns_the_mark_that_was_written(rig, make):
    written = make.mark(4, frontier=-(2**63), positions={"orders/0": 17, "ö/1": 2**62})
    sink = opened(rig, make, epoch=3)
    sink.write([make.batch((1, "a"))], written)
    sink.close()
    assert rig.sink().open(make.mark(4, run=2), make.schema) == written
    again = rig.sink().open(make.mark(4, run=3), make.schema)
    assert again is not None
    assert (again.run, again.epoch, again.positions) == (2, 4, written.positions)


@pytest.mark.parametrize("epoch", [2, 1])
def test_write_when_epoch_is_held_then_rows_are_skipped_and_not_read(rig, make, epoch):
    sink = opened(rig, make, epoch=1)
    sink.write([make.batch((1, "a"))], make.mark(2))
    assert sink.write(crashing(), make.mark(epoch)) == 0
    assert rig.rows() == [(1, "a")]
    assert rig.stored_epoch() == 2


def test_write_when_batches_crash_half_way_then_nothing_is_stored(rig, make):
    sink = opened(rig, make)
    sink.write([make.batch((1, "a"))], make.mark(0))
    with pytest.raises(Crash):
        sink.write(crashing(make.batch((2, "b")), make.batch((3, "c"))), make.mark(1))
    assert rig.rows() == [(1, "a")]
    assert rig.stored_epoch() == 0
    assert sink.write([make.batch((2, "b"))], make.mark(1)) == 1
    assert rig.rows() == [(1, "a"), (2, "b")]


def test_write_when_epoch_is_empty_then_mark_advances(rig, make):
    sink = opened(rig, make)
    assert sink.write([], make.mark(0)) == 0
    assert sink.write([make.batch()], make.mark(1, positions={"orders/0": 5})) == 0
    assert not rig.has_rows()
    found = rig.sink().open(make.mark(1, run=2), make.schema)
    assert found == make.mark(1, positions={"orders/0": 5})


def test_write_when_a_newer_run_has_opened_then_old_one_is_fenced(rig, make):
    old = opened(rig, make, run=1)
    old.write([make.batch((1, "a"))], make.mark(0))
    new = opened(rig, make, run=2, epoch=0)
    with pytest.raises(FencedError, match=r"run 2 .*stop this run"):
        old.write([make.batch((2, "old"))], make.mark(1))
    with pytest.raises(FencedError):
        old.write([make.batch((1, "old"))], make.mark(0))
    assert rig.stored_epoch() == 0
    assert new.write([make.batch((2, "new"))], make.mark(1, run=2)) == 1
    assert rig.rows() == [(1, "a"), (2, "new")]


def test_write_when_a_newer_run_opens_while_rows_are_read_then_nobody_loses(rig, make):
    """Either the old epoch is stored before the newer run sees the mark, or it is fenced: never both, never half."""
    old = opened(rig, make, run=1)
    found = []

    def claim():
        found.append(rig.sink().open(make.mark(-1, run=2), make.schema))

    newer = threading.Thread(target=claim)

    def rows():
        yield make.batch((1, "a"))
        newer.start()
        newer.join(0.3)
        yield make.batch((2, "b"))

    try:
        old.write(rows(), make.mark(0))
        stored = True
    except FencedError:
        stored = False
    newer.join(30)
    assert found == [make.mark(0) if stored else None]
    assert rig.has_rows() is stored


def test_open_when_run_is_older_then_is_fenced(rig, make):
    opened(rig, make, run=5)
    with pytest.raises(FencedError, match="Run 4 may not write"):
        rig.sink().open(make.mark(-1, run=4), make.schema)


def test_open_when_held_by_another_flow_then_is_refused_and_left_alone(durable_rig, make):
    sink = opened(durable_rig, make)
    sink.write([make.batch((1, "a"))], make.mark(0))
    with pytest.raises(SinkAheadError, match=r"rows of another flow or checkpoint .'flow-a'.*delete"):
        durable_rig.sink().open(make.mark(7, run=9, flow="flow-b"), make.schema)
    assert sink.write([make.batch((2, "b"))], make.mark(1)) == 1


def test_open_when_another_flow_claimed_but_never_stored_then_takes_over_and_fences_it(durable_rig, make):
    first = opened(durable_rig, make)
    second = durable_rig.sink()
    assert second.open(make.mark(-1, run=1, flow="flow-b"), make.schema) is None
    assert second.write([make.batch((2, "b"))], make.mark(0, run=1, flow="flow-b")) == 1
    with pytest.raises(FencedError):
        first.write([make.batch((1, "a"))], make.mark(0))
    assert durable_rig.rows() == [(2, "b")]


def test_open_when_sink_is_one_ahead_then_is_accepted_and_epoch_skipped(rig, make):
    opened(rig, make, epoch=4).write([make.batch((1, "a"))], make.mark(5))
    sink = rig.sink()
    assert sink.open(make.mark(4, run=2), make.schema) == make.mark(5)
    assert sink.write([make.batch((1, "a"))], make.mark(5, run=2)) == 0
    assert rig.rows() == [(1, "a")]


def test_open_when_sink_is_further_ahead_then_is_refused(rig, make):
    opened(rig, make, epoch=4).write([make.batch((1, "a"))], make.mark(5))
    with pytest.raises(SinkAheadError, match="up to epoch 5, but the checkpoint knows only 3"):
        rig.sink().open(make.mark(3, run=2), make.schema)


def test_write_when_not_opened_then_is_refused(rig, make):
    with pytest.raises(SinkError, match="open"):
        rig.sink().write([make.batch((1, "a"))], make.mark(0))


def test_write_when_rows_lack_a_column_then_is_refused_and_nothing_stored(rig, make):
    sink = opened(rig, make)
    with pytest.raises(SinkError):
        sink.write([make.batch((1, "a")), make.batch((1,), schema=pa.schema([("n", pa.int64())]))], make.mark(0))
    assert not rig.has_rows()
    assert rig.stored_epoch() == -1


def test_validate_when_appending_a_running_aggregate_then_is_refused(durable_rig, make):
    with pytest.raises(DeclarationError, match=r'running aggregate.*mode="upsert", key=\[\'n\'\]'):
        durable_rig.sink().validate(make.schema, updates=True, key=("n",))
    durable_rig.sink().validate(make.schema, updates=False, key=())


def test_constructor_when_storage_is_unreachable_then_nothing_happens(tmp_path):
    sinks.sql("postgresql://user:secret@nowhere.invalid/db", "t")
    sinks.sql(f"sqlite:///{tmp_path}/no/such/folder/r.db", "t")
    sinks.parquet(tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


# ruff: noqa: DTZ001  (a wall clock time has no zone; that is tested here)
UTC = dt.UTC
TYPES = pa.schema(
    [
        ("i", pa.int64()),
        ("small", pa.int8()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("x", pa.binary()),
        ("d", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("money", pa.decimal128(30, 8)),
    ]
)
VALUES = [
    (
        2**63 - 1, -128, math.inf, True, "ünï ☃ 🦆\t\\N\r\n\\.\n'\"%s:x", b"\x00\xff\\x", dt.date(1969, 12, 31),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), dt.datetime(1066, 10, 14, 9), Decimal("-1234567890123456789012.00000001"),
    ),
    (
        -(2**63), 127, -0.1, False, "", b"", dt.date(9999, 12, 31),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), dt.datetime(9999, 1, 1), Decimal("0.00000001"),
    ),
    (None,) * 10,
    (
        0, 0, 5e-324, None, "\\N", None, dt.date(1, 1, 1),
        dt.datetime(1, 1, 1, tzinfo=UTC), None, Decimal(0),
    ),
]  # fmt: skip


def read_back(rig, row):
    """What Python sees where SQLite has no type of its own."""
    if rig.system == "redis":
        i, small, f, b, s, x, *rest = row
        times = [None if v is None else v.decode() for v in rest]
        row = (
            i and int(i), small and int(small), f and float(f), None if b is None else b == b"true", s and s.decode() if s != b"" else "", x,
            *times,
        )  # fmt: skip
    elif rig.system != "sqlite":
        return row
    day = dt.date.fromisoformat
    moment = dt.datetime.fromisoformat
    *rest, b, s, x, d, at, wall, money = row
    return (
        *rest, None if b is None else bool(b), s, x, d and day(d), at and moment(at).replace(tzinfo=UTC), wall and moment(wall),
        money and Decimal(money),
    )  # fmt: skip


def test_write_when_all_types_with_nulls_then_they_come_back_unchanged(rig, make):
    sink = rig.sink()
    sink.validate(TYPES, updates=False, key=())
    sink.open(make.mark(-1), TYPES)
    half = len(VALUES) // 2
    whole = make.batch(*VALUES, schema=TYPES)
    # A slice, whose buffers do not start at its first row.
    assert sink.write([whole.slice(0, half), whole.slice(half)], make.mark(0)) == len(VALUES)
    columns = ", ".join(TYPES.names)
    if rig.system == "duckdb":  # its Python values of zoned times need pytz; the instant in µs does not
        columns = columns.replace("at,", 'epoch_us("at"),')
    found = [read_back(rig, row) for row in rig.rows(columns=columns)]
    if rig.system == "duckdb":
        start = dt.datetime(1970, 1, 1, tzinfo=UTC)
        at = TYPES.names.index("at")
        found = [(*r[:at], None if r[at] is None else start + dt.timedelta(microseconds=r[at]), *r[at + 1 :]) for r in found]
    assert found == VALUES


def test_write_when_names_are_odd_then_they_are_kept(rig, make):
    schema = pa.schema([('a "b" %s', pa.int64()), ("c:d", pa.string()), ("select", pa.float64()), ("größe", pa.string())])
    sink = opened(rig, make, schema=schema)
    assert sink.write([make.batch((1, "x", 0.5, "y"), schema=schema)], make.mark(0)) == 1
    if rig.system in {"parquet", "memory"}:
        assert rig.rows(columns=", ".join(schema.names)) == [(1, "x", 0.5, "y")]
    elif rig.system == "redis":
        assert rig.rows(columns=", ".join(schema.names)) == [(b"1", b"x", b"0.5", b"y")]
    else:
        assert rig.rows(columns='"a ""b"" %s", "c:d", "select", "größe"') == [(1, "x", 0.5, "y")]
