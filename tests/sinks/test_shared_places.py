"""Two outputs in one place: kept side by side where neither spoils the other, refused before anything is stored where one would."""

from __future__ import annotations

import pyarrow as pa
import pytest

import penstock as ps
from penstock import sinks
from penstock.errors import DeclarationError, SinkError

PAIRS = {
    "replace, replace": ({"mode": "replace"}, {"mode": "replace"}, "replace would delete the rows of the other one"),
    "append, replace": ({}, {"mode": "replace"}, "replace would delete the rows of the other one"),
    "replace, append": ({"mode": "replace"}, {}, "replace would delete the rows of the other one"),
    "upsert, replace": ({"mode": "upsert", "key": "n"}, {"mode": "replace"}, "replace would delete the rows of the other one"),
    "append, upsert": ({}, {"mode": "upsert", "key": "n"}, "upsert would delete rows that the other one has appended"),
    "upsert, append": ({"mode": "upsert", "key": "n"}, {}, "upsert would delete rows that the other one has appended"),
    "upserts": ({"mode": "upsert", "key": "n"}, {"mode": "upsert", "key": "word"}, "they are upserted by different keys"),
}
GOOD = {"append": ({}, {}), "upsert": ({"mode": "upsert", "key": ["n", "word"]}, {"mode": "upsert", "key": ["word", "n"]})}


def declared(first, second):
    """A flow with both outputs."""
    flow = ps.Flow("two outputs")
    stream = flow.source("s", ps.files("none", "n long, word string"))
    stream.sink(first, name="one")
    stream.where("n > 1").sink(second, name="two")


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("system", ["sqlite", "duckdb", "postgresql"])
def test_two_outputs_of_a_table_when_one_would_spoil_the_other_are_refused_when_declared(pair, system, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second, why = PAIRS[pair]
    urls, tables = {
        "sqlite": (["sqlite:///o.db", f"sqlite:///{tmp_path}/x/../o.db", "sqlite+pysqlite:///./o.db"], ["t", "T"]),
        "duckdb": (["duckdb:///o.duckdb", f"duckdb:///{tmp_path}/o.duckdb"], ["t", "main.T"]),
        "postgresql": (
            ["postgresql://a:b@Host/db", "postgres://c@host:5432/db?connect_timeout=3", "postgresql:///db?host=host"],
            ["t"],
        ),
    }[system]
    for url in urls:
        for table in tables:
            with pytest.raises(DeclarationError, match=rf"cannot keep two outputs because {why}.* \(outputs 'one' and 'two'\)"):
                declared(ps.sql(urls[0], tables[0], **first), ps.sql(url, table, **second))
    declared(ps.sql(urls[0], "t", **first), ps.sql(urls[0], "u", **second))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pair", PAIRS)
def test_two_outputs_of_a_table_that_only_the_database_can_tell_are_refused_when_opened(sql_rig, make, pair):
    first, second, why = PAIRS[pair]
    sql_rig.sink(**first).open(make.mark(-1, output="one"), make.schema)
    with pytest.raises(SinkError, match=f"holds output 'one' too, and cannot keep 'two' beside it because {why}"):
        sql_rig.sink(**second).open(make.mark(-1, output="two"), make.schema)
    assert sql_rig.query("SELECT output FROM penstock_marks") == [("one",)]
    other = make.mark(-1, output="two", flow="another")
    sql_rig.sink(**second).open(other, make.schema)  # whose first start stored nothing, so there is nothing to protect
    sql_rig.query("DELETE FROM penstock_marks WHERE output = 'two'")
    sink = sql_rig.sink(**first)
    sink.open(make.mark(-1, output="one"), make.schema)
    sink.write([make.batch((1, "a"))], make.mark(0, output="one"))
    with pytest.raises(SinkError, match=f"holds output 'one' too, .* because {why}"):
        sql_rig.sink(**second).open(other, make.schema)
    assert sql_rig.rows() == [(1, "a")]


@pytest.mark.parametrize("pair", GOOD)
def test_two_outputs_of_a_table_that_do_not_meet_are_both_kept(sql_rig, make, pair):
    made = [sql_rig.sink(**options) for options in GOOD[pair]]
    declared(*made)
    for output, sink in zip(("one", "two"), made, strict=True):
        sink.open(make.mark(-1, output=output), make.schema)
        sink.write([make.batch((1, output))], make.mark(0, output=output))
    assert sorted(sql_rig.rows()) == [(1, "one"), (1, "two")]


def test_tables_of_postgresql_whose_names_differ_in_case_are_two():
    url = "postgresql://a@host/db"
    declared(ps.sql(url, "t", mode="replace"), ps.sql(url, "T", mode="replace"))


def test_parquet_outputs_of_other_columns_are_refused_in_one_directory(tmp_path, make):
    path = tmp_path / "out"
    other = pa.schema([("n", pa.string()), ("word", pa.string())])
    for spelt in (str(path), f"{path}/", path.as_uri(), str(tmp_path / "x" / ".." / "out")):
        flow = ps.Flow("two outputs")
        stream = flow.source("s", ps.files("none", "n long, word string"))
        stream.sink(ps.parquet(path), name="one")
        stream.sink(ps.parquet(spelt), name="same")
        with pytest.raises(
            DeclarationError, match=r"column 'n' is int64 in one and string in the other \(outputs 'one' and 'two'\)"
        ):
            stream.select("cast(n as string) as n", "word").sink(ps.parquet(spelt), name="two")
        with pytest.raises(DeclarationError, match="column 'word' is string in one and nothing in the other"):
            stream.select("n").sink(ps.parquet(spelt), name="three")
    assert not list(tmp_path.iterdir())
    sinks.parquet(path).open(make.mark(-1, output="one"), make.schema)
    sinks.parquet(path).open(make.mark(-1, output="same"), make.schema)
    with pytest.raises(
        SinkError, match=r"holds column 'n' as int64, .* as string: .* if output 'one' is no more, delete its files"
    ):
        sinks.parquet(path).open(make.mark(-1, output="two"), other)
    sinks.parquet(path).open(make.mark(-1, output="two", flow="another"), other)  # nothing was stored yet
