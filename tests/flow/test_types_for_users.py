"""What a type checker sees of penstock in a user's script, and that seeing it costs nothing when the script runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RIGHT, WRONG, FIRST_HOUR = HERE / "typed_script.py", HERE / "mistyped_script.py", HERE / "first_hour_script.py"


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """By script and line, the codes of the errors that ``mypy --strict`` finds without any configuration."""
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file=",
            "--cache-dir",
            ROOT / ".mypy_cache/users",
            RIGHT,
            WRONG,
            FIRST_HOUR,
        ],
        cwd=tmp_path_factory.mktemp("user"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode in (0, 1), checked.stdout + checked.stderr
    found = {}
    for script, line, code in re.findall(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", checked.stdout, re.MULTILINE):
        found.setdefault((script, int(line)), set()).add(code)
    assert sum(map(len, found.values())) or not checked.returncode, checked.stdout
    return found


def test_script_that_uses_every_public_name_when_checked_strictly_has_their_types(refused):
    assert {line: codes for (script, line), codes in refused.items() if script in (RIGHT.name, FIRST_HOUR.name)} == {}


@pytest.mark.slow
def test_pyright_in_its_strict_mode_says_the_same(tmp_path):
    pytest.importorskip("pyright")
    settings = {"typeCheckingMode": "strict", "include": ["*.py"], "extraPaths": [str(ROOT / "src")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    for script in (RIGHT, WRONG, FIRST_HOUR):
        (tmp_path / script.name).write_text(script.read_text())
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    checked = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    report = json.loads(checked.stdout)
    assert report["summary"]["filesAnalyzed"] == 3
    found = {(Path(d["file"]).name, d["range"]["start"]["line"] + 1) for d in report["generalDiagnostics"]}
    marked = {n for n, line in enumerate(WRONG.read_text().splitlines(), 1) if "# refused: " in line}
    imported = {
        n for n, line in enumerate(WRONG.read_text().splitlines(), 1) if "ps.import_module" in line
    }  # it lets that pass
    assert found == {(WRONG.name, n) for n in marked - imported}


def test_misspelt_name_or_option_of_a_wrong_type_when_checked_is_refused(refused):
    expected = {
        number: set(marked[1].split(", "))
        for number, line in enumerate(WRONG.read_text().splitlines(), 1)
        if (marked := re.search(r"# refused: (.+)$", line))
    }
    assert {line: codes for (script, line), codes in refused.items() if script == WRONG.name} == expected


def test_script_names_every_public_name():
    used = set(re.findall(r"\bps\.(\w+)", RIGHT.read_text()))
    assert used == set(dir(penstock))


def test_names_that_a_checker_sees_are_those_that_load():
    source = (ROOT / "src/penstock/__init__.py").read_text()
    seen = re.findall(r"^    from (penstock\S+) import (\w+) as (\w+)$", source, re.MULTILINE)
    assert {name: home for home, name, _ in seen} == penstock._HOME
    assert all(name == shown for _, name, shown in seen)
    assert (ROOT / "src/penstock/py.typed").exists()


def test_import_of_penstock_loads_nothing_heavy():
    heavy = "{'pyspark', 'numba', 'pyarrow', 'numpy', 'pandas', 'duckdb', 'sqlglot', 'sqlalchemy'}"
    code = f"import sys, penstock; dir(penstock); print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_declaring_a_flow_loads_neither_spark_nor_the_recogniser():
    code = (
        "import sys, penstock as ps\n"
        "ps.Flow('f').source('s', ps.rate(), time='timestamp').key_by('value').aggregate(n=ps.count()).sink(ps.memory('m'))\n"
        "print(sorted({'pyspark', 'numba'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
