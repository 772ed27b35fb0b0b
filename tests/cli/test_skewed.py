"""``penstock skew``: what each strategy would make of the keys of files, and what it says of files that it cannot read."""

from __future__ import annotations

import gzip
import json
import re
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.cli import main
from penstock.routing.skew import COMPARED


def hot_keys(rows=4_000):
    rng = np.random.default_rng(5)
    return np.where(rng.random(rows) < 0.5, 0, rng.integers(0, 300, rows))


def parquet(table):
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer)
    return buffer.getvalue().to_pybytes()


def skew(*words, workers=4):
    return main(["skew", *map(str, words), "--workers", str(workers)])


@pytest.fixture(params=["csv", "json", "parquet"])
def files(request, tmp_path):
    keys = hot_keys()
    table = pa.table({"k": [f"k{k}" for k in keys], "other": keys % 7, "v": np.arange(4_000)})
    for part in range(2):
        rows, path = table.slice(part * 2_000, 2_000), str(tmp_path / f"part{part}.{request.param}")
        if request.param == "csv":
            pa.csv.write_csv(rows, path)
        elif request.param == "parquet":
            pq.write_table(rows, path)
        else:
            (tmp_path / f"part{part}.json").write_text("".join(json.dumps(r) + "\n" for r in rows.to_pylist()))
    return tmp_path, [f"k{k}" for k in keys]


def test_command_skew_reads_files_of_each_format_and_gives_what_the_function_gives(files, capsys):
    folder, keys = files
    assert skew(folder, "--key", "k", "--senders", "2", "--json") == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = ps.skew(pa.array(keys), workers=4, senders=2)
    assert [(s["strategy"], s["imbalance"], max(s["loads"])) for s in said] == list(
        zip(found.strategy, found.imbalance, found.max_load, strict=True)
    )


def test_command_skew_on_a_terminal_names_hot_keys_shows_loads_and_ends_with_the_advice(files, capsys):
    folder, keys = files
    assert skew(folder, "--key", "k") == 0
    said = capsys.readouterr().out.splitlines()
    share = keys.count("k0") / len(keys)
    assert said[0].startswith(f"4,000 rows, {len({*keys})} keys; the hottest: k0 {share:.1%}, k")
    for strategy in COMPARED:
        assert any(line.startswith(f"{type(strategy).__name__}() ") for line in said)
    loads = np.bincount(ps.route(ps.KeyGrouping(), pa.array(keys), workers=4), minlength=4)
    for worker, load in enumerate(loads.tolist()):
        bars = "█" * round(20 * load / loads.max())
        assert any(re.fullmatch(rf" {worker} +{bars} +{load:,} +█{{5,20}} +1,000 +", line) for line in said)
    assert said[-1] == ps.skew(pa.array(keys), workers=4).attrs["advice"]
    assert "take Histogram(): 1.00 times the mean" in said[-1]


def test_command_skew_when_keys_are_even_advises_the_default_and_shows_its_loads_only(files, capsys):
    assert skew(files[0], "--key", "other", "--key", "v") == 0
    said = capsys.readouterr().out
    assert "KeyGrouping(), the default, is enough: the busiest of 4 workers has 1.0" in said
    assert "rows by KeyGrouping()" in said
    assert "rows by Histogram()" not in said


def test_command_skew_when_there_are_many_workers_shows_the_busiest(files, capsys):
    folder, keys = files
    assert skew(folder, "--key", "k", workers=60) == 0
    said = capsys.readouterr().out
    loads = np.bincount(ps.route(ps.KeyGrouping(), pa.array(keys), workers=60), minlength=60)
    shown = [int(n) for n in re.findall(r"^ (\d+)  .* \d", said, re.MULTILINE)]
    assert len(shown) == 20
    assert loads[shown].min() >= np.delete(loads, shown).max()
    assert "These are the 20 busiest of 60 workers." in said


def test_command_skew_with_plot_draws_a_picture_or_says_what_is_missing(files, capsys, monkeypatch):
    folder, _ = files
    picture = folder.parent / "loads.png"
    assert skew(folder, "--key", "k", "--plot", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert skew(folder, "--key", "k", "--plot", folder / "no" / "loads.png") == 1
    assert "loads.png' cannot be written: " in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert skew(folder, "--key", "k", "--plot", picture) == 1
    assert "--plot needs matplotlib; install it with pip install matplotlib." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--key", "kk", "--workers", "4"], "--key names column 'kk', which does not exist; did you mean 'k'?"),
        (["--key", "k", "--workers", "0"], "greater than or equal to 1"),
        (["--workers", "2"], "--key"),
    ],
)
def test_command_skew_when_it_is_used_wrongly_ends_with_2(words, sentence, files, capsys):
    assert main(["skew", str(files[0]), *words]) == 2
    assert sentence in capsys.readouterr().err


ROWS = pa.table({"k": ["a", "b"] * 500})
BROKEN = {
    "half of a Parquet file": ({"a.parquet": parquet(ROWS)[:300]}, "'a.parquet' cannot be read as parquet: Parquet magic bytes not found"),
    "an empty Parquet file": ({"a.parquet": b""}, "'a.parquet' is empty, not a Parquet file"),
    "an empty CSV file": ({"a.csv": b""}, "'a.csv' cannot be read as csv: CSV parse error: Empty CSV file"),
    "an empty JSON file": ({"a.json": b""}, "'a.json' cannot be read as json: Empty JSON stream."),
    "no rows": ({"a.csv": b"k,v\n"}, "These files have no rows."),
    "a short row": ({"a.csv": b"k,v\n1,2\n3\n"}, "'a.csv' cannot be read as csv: CSV parse error: Row #3: Expected 2 columns, got 1: 3."),
    "an open quote": ({"a.csv": b'k,v\n"a,2\nb,3\n'}, "'a.csv' cannot be read as csv: CSV parse error: "),
    "not UTF-8": ({"a.csv": b"k,v\n\xe9,1\n"}, "'a.csv' cannot be read as csv: "),
    "a line that is no JSON": ({"a.json": b'{"k":1}\n{"k":2}\nno\n'}, "'a.json' cannot be read as json: JSON parse error: Invalid value. in row 2."),
    "a line that is cut off": ({"a.json": b'{"k":1}\n{"k":'}, "'a.json' cannot be read as json: JSON parse error: "),
    "a line that is a list": ({"a.json": b'{"k":1}\n[1]\n'}, "'a.json' cannot be read as json: JSON parse error: "),
    "two types in a file": ({"a.json": b'{"k":1}\n{"k":"x"}\n'}, "'a.json' cannot be read as json: JSON parse error: Column(/k) changed from"),
    "two types in two files": ({"a.json": b'{"k":1}\n', "b.json": b'{"k":"x"}\n'}, "The key is int64 in 'a.json' and string in 'b.json'; give"),
    "no key column": ({"a.json": b'{"j":1}\n'}, "--key names column 'k', which does not exist; there are j."),
    "no key column in one": ({"a.json": b'{"k":1}\n', "b.json": b'{"j":1}\n'}, "--key, in 'b.json', names column 'k', which does not exist; there are"),
    "a nested key": ({"a.json": b'{"k":{"a":1}}\n'}, "A key column cannot be of type struct<a: int64>; use numbers"),
    "half of a packed file": ({"a.csv.gz": gzip.compress(b"k\n" + bytes(range(65, 91)) * 999)[:60]}, "'a.csv.gz' cannot be read as csv: "),
    "nanoseconds": ({"a.parquet": parquet(pa.table({"k": pa.array([1], pa.timestamp("ns"))}))}, "A key column has times in nanoseconds, which"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_command_skew_when_a_file_cannot_be_used_says_so_in_one_sentence_and_ends_with_2(case, tmp_path, monkeypatch, capsys):
    contents, sentence = BROKEN[case]
    monkeypatch.chdir(tmp_path)
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert skew(*contents, "--key", "k") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(sentence)
    assert len(err.splitlines()) == 1


USABLE = {
    "nulls, NaN and zeros": ("parquet", parquet(pa.table({"k": [None, 0.0, -0.0, 0.0, float("nan")] * 250})), 3, "0.0 60.0%"),
    "categories": ("parquet", parquet(pa.table({"k": pa.array(["a", "b"] * 500).dictionary_encode()})), 2, "a 50.0%"),
    "long strings": ("parquet", parquet(pa.table({"k": pa.array(["a", "b"] * 500, pa.large_string())})), 2, "b 50.0%"),
    "keys only in some lines": ("json", b'{"k":1}\n{"j":1}\n' * 500, 2, "None 50.0%"),
    "quotes, brackets, newlines": ("csv", b"k,v\n" + (b'"a [b] ""x""' + b"\n" * 30 + b'c",2\n[red],3\n') * 50_000, 2, 'a [b] "x" c 50.0%, [red] 50.0%'),
    "numbers that become text": ("csv", b"k\n" + b"1\n" * 500_000 + b"x\n", 2, "1 100.0%, x 0.0%"),
    "leading zeros": ("csv", b"k\n" + b"7\n007\n" * 500, 2, "007 50.0%"),
    "a byte order mark": ("csv", b"\xef\xbb\xbfk\n1\n1\n", 1, "1 100.0%"),
    "packed": ("csv.gz", gzip.compress(b"k\n1\n2\n1\n"), 2, "1 66.7%, 2 33.3%"),
    "long keys": ("csv", b"k\n" + b"word " * 99, 1, "word word word word word word word word… 100.0%"),
}  # fmt: skip


@pytest.mark.parametrize("case", USABLE)
def test_command_skew_reads_and_shows_keys_of_every_kind(case, tmp_path, capsys):
    ending, content, keys, hottest = USABLE[case]
    (tmp_path / f"a.{ending}").write_bytes(content)
    assert skew(tmp_path, "--key", "k") == 0
    said = capsys.readouterr().out.splitlines()[0]
    assert f" rows, {keys} keys; the hottest: " in said
    assert hottest in said
