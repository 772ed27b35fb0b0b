from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock import cli
from penstock.cli import commands
from penstock.errors import SinkError
from penstock.spark.session.complaining import complain

ROOT = Path(__file__).parents[2]


@pytest.fixture
def say_no(monkeypatch):
    """A command that fails as told."""

    def fail(kind: str) -> None:
        raise {"penstock": SinkError("sink 'out' is\n gone; bring it back."), "bug": ZeroDivisionError("by zero")}[kind]

    monkeypatch.setattr(commands, "COMMANDS", (fail,))


def test_version_answers_without_loading_anything_heavy():
    code = (
        "import sys; from penstock.cli import main; code = main(['--version']); "
        "print(code, sorted({'pyspark', 'pandas', 'numpy', 'pyarrow', 'typer', 'duckdb'} & set(sys.modules)))"
    )
    took_s = []
    for _ in range(3):  # the best of three: the machine may be busy
        started = time.monotonic()
        answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        took_s.append(time.monotonic() - started)
        assert answer.stdout == "penstock 0.1.0\n0 []\n"
    assert min(took_s) < 1, took_s


def test_installed_command_answers_its_version():
    command = Path(sys.executable).with_name("penstock")
    if not command.exists():
        pytest.skip("The package is not installed beside this Python.")
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == "penstock 0.1.0\n"


def test_help_names_the_options(capsys):
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "--version" in shown
    assert "--debug" in shown


@pytest.mark.parametrize("words", [["--nonsense"], ["nonsense"], ["fail"], ["fail", "bug", "again"]])
def test_wrong_usage_ends_with_two(words, say_no, capsys):
    assert cli.main(words) == 2
    assert "Usage: penstock" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "nope.py:flow"], "There is no file 'nope.py'; give file.py:name, as in app.py:flow.\n"),
        (["run", "app.py:nope"], "app.py has no 'nope'; give file.py:name of a penstock.Flow.\n"),
        (["run", "app.py:three"], "app.py:three is a int; it must be a penstock.Flow, or a function that returns one.\n"),
        (["run", "app.py", "--trigger", "soon"], "trigger 'soon' is not a duration; write for example"),
        (["run", "app.py", "--workers", "0"], "Usage: penstock run"),
        (["scale", "0"], "Usage: penstock scale"),
    ],
)
def test_wrong_words_of_other_commands_end_with_two(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("three = 3\n")
    assert cli.main([*words, "--checkpoint", "ckpt"]) == 2
    assert capsys.readouterr().err.startswith(message)


def test_flow_that_is_declared_wrongly_or_a_folder_that_is_no_checkpoint_ends_with_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text("import penstock as ps\nps.Flow('f').source('e', 5)\n")
    assert cli.main(["run", "wrong.py", "--checkpoint", "ckpt"]) == 1
    assert capsys.readouterr().err.startswith("Source 'e' is 5; use penstock.files(...)")
    assert cli.main(["status", "--checkpoint", "nope"]) == 1
    assert capsys.readouterr().err == "nope is not a checkpoint of penstock; give the folder that the flow was started with.\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "import penstock\n\n1 / 0\n",
            "'app.py' cannot be loaded: ZeroDivisionError: division by zero (app.py, line 3); fix it.\n",
        ),
        ("def flow():\n    return {}['x']\n", "'app.py' cannot be loaded: KeyError: 'x' (app.py, line 2); fix it.\n"),
        (
            "import nowhere_at_all\n",
            "'app.py' cannot be loaded: ModuleNotFoundError: No module named 'nowhere_at_all' (app.py, line 1); fix it.\n",
        ),
        (
            "import sys\nsys.exit()\n",
            "'app.py' cannot be loaded: it ends its process, SystemExit: (app.py, line 2); put what is not about the flow under if __name__ == '__main__'.\n",
        ),
    ],
)
def test_file_of_a_flow_that_raises_is_told_with_its_line(body, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(body)
    assert cli.main(["run", "app.py", "--checkpoint", "ckpt"]) == 1
    assert capsys.readouterr().err == said


def test_file_without_the_flow_when_it_has_others_is_told_with_their_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("import penstock as ps\na, b, c = ps.Flow('a'), ps.Flow('b'), 3\n")
    assert cli.main(["run", "app.py", "--checkpoint", "ckpt"]) == 2
    assert capsys.readouterr().err == "app.py has no 'flow'; give app.py:a or app.py:b.\n"


@pytest.mark.parametrize("name", ["json", "penstock", "graphlib"])
def test_file_that_has_the_name_of_a_module_is_refused_and_the_module_stays(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.py").write_text("flow = 3\n")
    before = sys.modules.get(name)
    assert cli.main(["run", f"{name}.py", "--checkpoint", "ckpt"]) == 2
    assert capsys.readouterr().err == f"'{name}.py' has the name of a module that others import, '{name}'; rename it.\n"
    assert sys.modules.get(name) is before


def test_penstock_error_is_one_sentence_on_stderr(say_no, capsys):
    assert cli.main(["fail", "penstock"]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "sink 'out' is gone; bring it back.\n")


def test_warning_is_one_sentence_on_stderr_without_code(monkeypatch, capsys):
    def warned() -> None:
        complain("Region 'k' keeps\n its 2 workers.")

    monkeypatch.setattr(commands, "COMMANDS", (warned,))
    assert cli.main(["warned"]) == 0
    assert capsys.readouterr().err == "Region 'k' keeps its 2 workers.\n"


def test_warning_in_a_script_points_at_the_line_that_called_penstock():
    namespace = {"__name__": "penstock.deep", "complain": complain}
    exec("def inner():\n    complain('not as asked')\ndef start():\n    inner()\n", namespace)
    with pytest.warns(UserWarning, match="not as asked") as caught:
        namespace["start"]()
    assert caught[0].filename == __file__


def test_unforeseen_error_is_one_line_that_names_debug(say_no, capsys):
    assert cli.main(["fail", "bug"]) == 1
    expected = "penstock failed with ZeroDivisionError: by zero (run it again with --debug for the traceback).\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("words", [["--debug", "fail", "penstock"], ["fail", "penstock", "--debug"]])
def test_debug_lets_the_traceback_through(words, say_no):
    with pytest.raises(SinkError, match="bring it back"):
        cli.main(words)


def test_debug_after_two_dashes_is_the_commands_own(monkeypatch, capsys):
    def echo(words: list[str]) -> None:
        print(words)

    monkeypatch.setattr(commands, "COMMANDS", (echo,))
    assert cli.main(["echo", "--", "--debug"]) == 0
    assert capsys.readouterr().out == "['--debug']\n"


@pytest.mark.slow
def test_fresh_environment_when_installed_with_pip_has_the_command(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    options = ["--quiet", "--disable-pip-version-check", "-c", ROOT / "requirements.lock"]
    options.append("--no-compile")  # Python compiles the few modules that the command imports
    subprocess.run([python, "-m", "pip", "install", *options, ROOT], check=True, cwd=tmp_path)
    answer = subprocess.run(
        [python.with_name("penstock"), "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert answer.stdout == "penstock 0.1.0\n"
    assert (
        subprocess.run([python.with_name("penstock"), "--help"], capture_output=True, check=False, cwd=tmp_path).returncode == 0
    )
