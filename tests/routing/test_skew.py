"""`penstock.skew` and ``penstock skew``: what each strategy would make of a user's keys."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import penstock as ps
from penstock.cli import main
from penstock.errors import DeclarationError
from penstock.routing.skew import COMPARED


def hot_keys(rows=20_000):
    rng = np.random.default_rng(5)
    return np.where(rng.random(rows) < 0.5, 0, rng.integers(0, 300, rows))


def test_skew_equals_a_count_of_what_route_gives():
    keys = hot_keys()
    found = ps.skew(keys, workers=8, senders=3).set_index("strategy")
    assert list(found.index) == [f"{type(s).__name__}()" for s in COMPARED]
    senders = np.concatenate([np.arange(len(e)) % 3 for e in np.array_split(keys, 10)])
    epochs = np.concatenate([np.full(len(e), i) for i, e in enumerate(np.array_split(keys, 10))])
    for strategy in COMPARED:
        workers = ps.route(strategy, keys, workers=8, senders=senders, epochs=epochs)
        row = found.loc[f"{type(strategy).__name__}()"]
        loads = np.bincount(workers, minlength=8)
        sets = [{} for _ in range(10)]
        for key, worker, epoch in zip(keys.tolist(), workers.tolist(), epochs.tolist(), strict=True):
            sets[epoch].setdefault(key, set()).add(worker)
        common = [(a[k], b[k]) for a, b in pairwise(sets) for k in a.keys() & b.keys()]
        copies = {*zip(keys.tolist(), workers.tolist(), strict=True)}
        assert (row.max_load, row.mean_load) == (loads.max(), 2_500)
        assert row.imbalance == pytest.approx((loads.max() - 2_500) / 20_000)
        assert row.copies_per_key == pytest.approx(len(copies) / len(set(keys.tolist())))
        assert row.moved_between_epochs == pytest.approx(sum(a != b for a, b in common) / len(common))
    assert found.max_load["KeyGrouping()"] > 10_000
    assert found.max_load["Histogram()"] == 2_500


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ps.skew([1], workers=0), "skew(workers=0): give a number from 1 on."),
        (lambda: ps.skew([1], workers=2, senders=True), "skew(senders=True): give a number from 1 on."),
        (lambda: ps.skew([1], "k", workers=2), "skew takes key= for a Spark DataFrame only"),
    ],
)
def test_skew_when_it_is_asked_wrongly_says_what_is_wanted(call, sentence):
    with pytest.raises(DeclarationError) as raised:
        call()
    assert sentence in str(raised.value)


def test_skew_when_there_are_no_keys_or_one_worker_is_balanced():
    for keys, workers in (([], 3), (["a"], 1), (["a"] * 7, 1)):
        found = ps.skew(pa.array(keys, pa.string()), workers=workers)
        assert (found.imbalance == 0).all()


@pytest.fixture(params=["csv", "json", "parquet"])
def files(request, tmp_path):
    keys = hot_keys(4_000)
    table = pa.table({"k": [f"k{k}" for k in keys], "other": keys % 7, "v": np.arange(4_000)})
    for part in range(2):
        rows, path = table.slice(part * 2_000, 2_000), str(tmp_path / f"part{part}.{request.param}")
        if request.param == "csv":
            pa.csv.write_csv(rows, path)
        elif request.param == "parquet":
            pa.parquet.write_table(rows, path)
        else:
            (tmp_path / f"part{part}.json").write_text("".join(json.dumps(r) + "\n" for r in rows.to_pylist()))
    return tmp_path, [f"k{k}" for k in keys]


def test_command_skew_reads_files_of_each_format_and_gives_what_the_function_gives(files, capsys):
    folder, keys = files
    assert main(["skew", str(folder), "--key", "k", "--workers", "4", "--senders", "2", "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = ps.skew(pa.array(keys), workers=4, senders=2)
    assert [(s["strategy"], s["imbalance"], max(s["loads"])) for s in said] == list(
        zip(found.strategy, found.imbalance, found.max_load, strict=True)
    )


def test_command_skew_on_a_terminal_advises_one_strategy_and_shows_loads(files, capsys):
    folder, _ = files
    assert main(["skew", str(folder), "--key", "k", "--workers", "4"]) == 0
    said = capsys.readouterr().out
    assert "Histogram() brings that to 1.00 with 1.0" in said
    assert "worker   3" in said
    assert main(["skew", str(folder), "--key", "other", "--key", "v", "--workers", "4"]) == 0
    assert "KeyGrouping() is enough: the busiest of 4 workers has 1.0" in capsys.readouterr().out


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
