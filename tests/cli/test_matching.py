"""``penstock match``: patterns over files."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from penstock import cli
from penstock.cli.matching import _print_table
from penstock.errors import PenstockError, RecordError
from penstock.spark.patterns.match_files import FileMatches

EVENTS = pa.table(
    {
        "at": pa.array([0, 1, 2, 3, 4, 5], pa.timestamp("s", "UTC")),
        "user": ["u1", "u1", "u2", "u1", None, "u2"],
        "kind": ["A", "B", "A", "B", "A", "B"],
        "v": [1, 2, 3, 4, 5, None],
    }
)
QUERY = "SELECT * WHERE A AS first ; B PARTITION BY [user]"
WANTED = [("u1", [1, 2]), ("u1", [1, 4]), ("u2", [3, None])]


def write(folder, kind):
    """The events in two files."""
    for n, rows in enumerate([EVENTS[:3], EVENTS[3:]]):
        if kind == "parquet":
            pq.write_table(rows, folder / f"{n}.parquet")
        elif kind == "csv":
            pa_csv.write_csv(rows, folder / f"{n}.csv")
        else:
            lines = "".join(json.dumps(row, default=str) + "\n" for row in rows.to_pylist())
            (folder / f"{n}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_files_of_every_format_give_the_same_matches(spark, tmp_path, kind):
    write(tmp_path, kind)
    found = FileMatches(spark, QUERY, [str(tmp_path)], kind, order_by=["at"], type="kind")
    rows = [json.loads(line) for line in found.lines()]
    assert [(r["user"], [e["v"] for e in r["events"]]) for r in rows] == WANTED
    assert rows[0]["match_start"] == "1970-01-01T00:00:00.000Z"
    assert rows[0]["first"] == [{"at": "1970-01-01T00:00:00.000Z", "user": "u1", "kind": "A", "v": 1}]
    assert found.left_out() == "1 event without user left out: no key, no match."
    assert found.columns == ["user", "match_start", "match_end", "events", "first"]
    assert len(found.rows(2)) == 2
    assert len(found.rows(0)) == 3


@pytest.mark.spark
def test_command_prints_json_lines_in_a_pipe(tmp_path):
    write(tmp_path, "csv")
    (tmp_path / "query.ceql").write_text("SELECT COUNT(*)\nWHERE a ; b\nPARTITION BY [user]")
    words = [
        f"@{tmp_path}/query.ceql",
        f"{tmp_path}/*.csv",
        "--order-by",
        "at",
        "--define",
        "a=kind = 'A'",
        "--define",
        "b=v > 1",
    ]
    done = subprocess.run([sys.executable, "-m", "penstock", "match", *words], capture_output=True, text=True, check=True)
    assert [json.loads(line)["matches"] for line in done.stdout.splitlines()] == [1, 1]
    assert done.stderr == "1 event without user left out: no key, no match.\n"


@pytest.mark.spark
def test_errors_of_a_query_that_runs_are_one_sentence(spark, tmp_path):
    pa_csv.write_csv(EVENTS.set_column(0, "at", pa.array([0] * 6)), tmp_path / "ties.csv")
    ties = FileMatches(spark, QUERY, [str(tmp_path)], "csv", order_by=["at"], type="kind")
    with pytest.raises(
        RecordError, match=r"^Events \(at 0, user u\d.+ have the same position in the order by at; name a further column"
    ):
        list(ties.lines())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("query", "how", "message"),
    [
        (QUERY, {"where": "nope > 1"}, "where 'nope > 1' names column 'nope', which does not exist; there are user, "),
        (QUERY, {"where": "match_start"}, "where needs a condition, but 'match_start' is of type timestamp"),
        (
            "SELECT * WHERE A FILTER A[user LIKE '(x']",
            {},
            "line 1, column 37: LIKE '(x' is not a regular expression: Unclosed group.",
        ),
        (QUERY, {"order_by": ["when"]}, "order_by names column 'when', which does not exist; there are at, user"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused_before_anything_runs(spark, tmp_path, query, how, message):
    write(tmp_path, "parquet")
    with pytest.raises(PenstockError) as refused:
        FileMatches(spark, query, [str(tmp_path)], "parquet", **{"order_by": ["at"], "type": "kind", **how})
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["SELECT * WHERE A ;", "a.csv"], "line 1, column 19: the query ends too soon; expected"),
        (["@nope.ceql", "a.csv"], "The query cannot be read from 'nope.ceql': "),
        (["SELECT * WHERE A", "nope-*.csv"], "There is no file 'nope-*.csv'; give files, folders, or patterns"),
        (
            ["SELECT * WHERE A", "a.csv", "b.json"],
            "All files must have one format, and these have csv (a.csv) and json (b.json);",
        ),
        (["SELECT * WHERE A", "c.log"], "The name of 'c.log' does not show its format; give --format csv, json or parquet."),
        (["SELECT * WHERE A", "c.log", "--format", "xml"], "There is no format 'xml'; there are csv, json, parquet."),
        (["SELECT * WHERE A", "empty"], "There is no file 'empty'; give files, folders"),
        (["SELECT * WHERE A", "a.csv", "--define", "A"], "--define 'A' is not of the form name=condition, as in"),
        (["SELECT * WHERE A", "a.csv", "--define", "A=x", "--define", "A=y"], "--define names the type 'A' twice;"),
        (["SELECT * WHERE A", "a.csv"], "The type of an event must be known: give --type COLUMN, or --define name=condition"),
        (["SELECT * WHERE A", "a.csv", "--define", "A=x", "--type", "t"], "The type of an event must be known: give --type"),
        (["SELECT * WHERE A", "h.csv", "--type", "kin"], "type names column 'kin', which does not exist; did you mean 'kind'?"),
    ],
)
def test_wrong_words_are_refused_before_spark_is_started(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "penstock.spark.patterns.match_files", None)
    for name in ("a.csv", "b.json", "c.log"):
        (tmp_path / name).touch()
    (tmp_path / "h.csv").write_text("at,kind\n")
    (tmp_path / "empty").mkdir()
    assert cli.main(["match", *words, "--order-by", "at"]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_caret_of_a_wrong_query_stands_below_it(capsys):
    assert cli.main(["match", "SELECT * WHERE A B", "a.csv", "--order-by", "at"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["  SELECT * WHERE A B", "                   ^"]


@pytest.mark.spark
@pytest.mark.parametrize(("name", "header"), [("a.csv", "at,user,kind,v\n"), ("a.csv", ""), ("a.json", "")])
def test_file_without_events_has_no_match_and_that_is_said(spark, name, header, tmp_path, monkeypatch, capsys):
    path = str(tmp_path / name)
    Path(path).write_text(header)
    monkeypatch.setattr("penstock.cli.matching.quiet_session", lambda *_, **__: spark)
    query = "SELECT * WHERE A ; B FILTER B[v > 1] PARTITION BY [user] WITHIN 3 MINUTES"
    assert cli.main(["match", query, path, "--order-by", "at", "--type", "kind"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "The files hold no event, so there is no match.\n")
    if header:
        assert cli.main(["match", query.replace("v >", "w >"), path, "--order-by", "at", "--type", "kind"]) == 2
        assert "names column 'w', which does not exist; there are at, user, kind, v." in capsys.readouterr().err


@pytest.mark.spark
def test_what_goes_wrong_while_it_runs_is_told_apart_from_wrong_words(spark, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.csv").write_text("at,kind\n1,A\n1,A\n2,B\n")
    monkeypatch.setattr("penstock.cli.matching.quiet_session", lambda *_, **__: spark)
    words = ["match", "SELECT * WHERE A ; B", str(tmp_path), "--order-by", "at", "--type"]
    assert cli.main([*words, "kind"]) == 1
    assert "have the same position in the order by at" in capsys.readouterr().err
    assert cli.main([*words, "kin"]) == 2
    assert capsys.readouterr().err == "type names column 'kin', which does not exist; did you mean 'kind'?\n"


@pytest.mark.spark
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--type", "kind", "--schema", "at what"], "--schema is not a list of columns such as 'tail string, delay double'"),
        (
            ["--define", "A=nope(at) > 1", "--define", "B=at > 1"],
            "The query failed: Cannot resolve routine `nope`",
        ),
        (
            ["--define", "A=w > 1", "--define", "B=at > 1"],
            "define 'w > 1' names column 'w', which does not exist; there are at, ",
        ),
        (
            ["--type", "kind", "--where", "zz > 1"],
            "where 'zz > 1' names column 'zz', which does not exist; there are match_start",
        ),
    ],
)
def test_what_only_spark_can_refuse_ends_with_two_and_one_line(spark, words, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.csv").write_text("at,kind\n1,A\n2,B\n")
    monkeypatch.setattr("penstock.cli.matching.quiet_session", lambda *_, **__: spark)
    assert cli.main(["match", "SELECT * WHERE A ; B", str(tmp_path), "--order-by", "at", *words]) == 2
    err = capsys.readouterr().err.splitlines()
    assert err[-1].startswith(message)


@pytest.mark.spark
def test_condition_that_fails_on_a_value_ends_with_one_and_one_line(tmp_path):
    (tmp_path / "a.csv").write_text("at,kind\n1,A\n2,B\n")
    words = ["match", "SELECT * WHERE A ; B", f"{tmp_path}/a.csv", "--order-by", "at", "--define", "A=cast(kind AS int) > 1"]
    words += ["--define", "B=at > 1"]
    done = subprocess.run([sys.executable, "-m", "penstock", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("The expression 'CASE WHEN (cast(kind AS int) > 1)")
    assert "failed on a record: the value 'A' of the type" in done.stderr


@pytest.mark.spark
def test_table_shows_data_that_looks_like_markup_as_it_is(spark, tmp_path, capsys):
    (tmp_path / "a.csv").write_text("at,kind,v\n1,A,[/b]\n2,B,:smile:\n")
    found = FileMatches(spark, "SELECT * WHERE A ; B", [str(tmp_path)], "csv", order_by=["at"], type="kind")
    _print_table(found, 20)
    shown = capsys.readouterr().out
    assert "1 A [/b]" in shown
    assert "2 B :smile:" in shown


def test_wrong_master_is_refused_before_java_is_started(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("at,kind\n")
    words = ["match", "SELECT * WHERE A", f"{tmp_path}/a.csv", "--order-by", "at", "--type", "kind"]
    assert cli.main([*words, "--master", "nonsense"]) == 2
    assert capsys.readouterr().err == (
        "--master 'nonsense' is no Spark master; give local[2], local[*], spark://HOST:PORT, k8s://… or yarn.\n"
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "text"),
    [("a.json", '{"at":1,"kind":"A"}\nnope\n{"at":2,"kind":"B"}\n'), ("a.csv", "at,kind\n1,A\n2\n3,B,5\n4,B\n")],
)
def test_rows_that_are_none_stop_it(spark, name, text, tmp_path, monkeypatch, capsys):
    (tmp_path / name).write_text(text)
    monkeypatch.setattr("penstock.cli.matching.quiet_session", lambda *_, **__: spark)
    assert cli.main(["match", "SELECT * WHERE A ; B", str(tmp_path / name), "--order-by", "at", "--type", "kind"]) != 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "Malformed" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("after", [0.3, 1.5])
def test_ctrl_c_while_java_starts_ends_both_without_a_word(after, tmp_path):
    file = tmp_path / "events.csv"
    file.write_text("at,kind\n1,A\n")
    words = ["match", "SELECT * WHERE A", str(file), "--order-by", "at", "--type", "kind"]
    command = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    java: list[str] = []
    while not java and command.poll() is None:  # spark-submit, which becomes Java
        java = children.read_text().split()
        time.sleep(0.02)
    time.sleep(after)
    command.send_signal(signal.SIGINT)
    said, _ = command.communicate(timeout=60)
    assert (command.returncode, said) == (130, "")
    end = time.monotonic() + 60
    while Path(f"/proc/{java[0]}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not Path(f"/proc/{java[0]}").exists()
