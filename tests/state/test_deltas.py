from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
from state_rows import rows, versions, write

from penstock.errors import StateError, TornFileError
from penstock.state import FileRef, Metadata, Version, deltas, read_batches, read_file, write_file
from penstock.types import from_plain, plain


@pytest.fixture(params=["whole", "streamed"])
def reading(request, monkeypatch):
    """Small files are read at once, large ones in two passes; both must check the same."""
    if request.param == "streamed":
        monkeypatch.setattr(deltas, "_WHOLE_BYTES", 0)
        monkeypatch.setattr(deltas, "_CHUNK_BYTES", 100)


def test_file_when_written_then_read_back_with_report(fs, root, reading):
    batches = [rows({b"000a": (b"1", 7), b"000b": None}), rows({b"000c": b""})]
    ref = write_file(fs, root, "r/w/1", batches, Metadata("delta", "me", 4, {"rows": [1]}), "s")
    metadata, table = read_file(fs, root, ref)
    assert metadata == Metadata("delta", "me", 4, {"rows": [1]})
    assert table.to_pylist() == [row for batch in batches for row in batch.to_pylist()]
    assert [batch.num_rows for batch in read_batches(fs, root, ref)] == [2, 1]
    assert (ref.version, ref.rows, ref.bytes) == (4, 3, Path(root, "r/w/1").stat().st_size)


def test_file_when_empty_then_read_back(fs, root):
    ref = write_file(fs, root, "d", [], Metadata("delta", "me", 0), "s")
    assert read_file(fs, root, ref)[1].num_rows == 0


def test_file_when_missing_then_named(fs, root, reading):
    ref = write(fs, root, "d", {b"000a": b"1"})
    Path(root, "d").unlink()
    with pytest.raises(TornFileError, match=re.escape(f"{root}/d is missing; restore it from a copy")):
        read_file(fs, root, ref)


def test_file_when_truncated_anywhere_then_named_with_sizes(fs, root, reading):
    ref = write(fs, root, "d", {b"000a": b"1"})
    raw = Path(root, "d").read_bytes()
    for size in (0, 1, ref.bytes // 2, ref.bytes - 32, ref.bytes - 1):
        Path(root, "d").write_bytes(raw[:size])
        with pytest.raises(TornFileError, match=f"{root}/d is truncated to {size} of {ref.bytes} bytes"):
            read_file(fs, root, ref)


def test_file_when_too_long_then_named(fs, root, reading):
    ref = write(fs, root, "d", {b"000a": b"1"})
    with Path(root, "d").open("ab") as file:
        file.write(b"x")
    with pytest.raises(TornFileError, match=f"{root}/d has {ref.bytes + 1} bytes, not {ref.bytes}"):
        read_file(fs, root, ref)


def test_file_when_any_bit_is_flipped_then_named_before_a_row_is_given(fs, root, reading):
    ref = write(fs, root, "d", {b"000a": b"1"})
    raw = Path(root, "d").read_bytes()
    for at in range(0, len(raw), 7):
        Path(root, "d").write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
        with pytest.raises(TornFileError, match=f"{root}/d was altered: its checksum differs"):
            next(read_batches(fs, root, ref))


def test_file_when_another_attempts_file_lies_there_then_refused(fs, root):
    mine = write(fs, root, "d", {b"000a": b"1"})
    other = write(fs, root, "d", {b"000a": b"2"})
    assert mine.bytes == other.bytes
    with pytest.raises(TornFileError, match="checksum differs"):
        read_file(fs, root, mine)


def test_version_when_through_json_then_equal(fs, root):
    version = versions(fs, root, {b"000a": b"1"}, {b"000a": b"2"})[-1]
    for made in (Version(), version, dataclasses.replace(version, base=FileRef("b", 0, 1, 2, "c", "l"))):
        assert from_plain(Version, json.loads(json.dumps(made, default=plain))) == made


def test_lineage_when_files_differ_in_content_order_or_number_then_differs():
    one, two = FileRef("a", 0, 1, 1, "x"), FileRef("b", 1, 1, 1, "y")
    made = [
        Version(),
        Version(0, one),
        Version(0, two),
        Version(0, None, (one,)),
        Version(1, None, (one, two)),
        Version(1, None, (two, one)),
        Version(1, one, (two,)),
    ]
    # A base without a lineage of its own stands for the same content as the same file as first delta.
    assert len({version.lineage() for version in made}) == len(made) - 2
    assert Version(0, one).lineage() == Version(0, None, (one,)).lineage()


def test_with_base_when_made_from_an_earlier_version_then_later_deltas_stay():
    refs = [FileRef(str(n), n, 1, 1, str(n)) for n in range(4)]
    version = Version(3, None, tuple(refs))
    base = FileRef("b", 1, 1, 1, "b", Version(1, None, tuple(refs[:2])).lineage())
    compacted = version.with_base(base)
    assert (compacted.version, compacted.base, compacted.deltas) == (3, base, tuple(refs[2:]))
    assert compacted.lineage() == version.lineage()


def test_with_base_when_made_from_other_files_then_refused():
    with pytest.raises(StateError, match="The base b was not compacted from the files of version 0"):
        Version(0, None, (FileRef("a", 0, 1, 1, "x"),)).with_base(FileRef("b", 0, 1, 1, "b", "elsewhere"))


def test_with_delta_when_nothing_changed_then_only_the_number_moves():
    assert Version(3).with_delta(None, 4) == Version(4)
