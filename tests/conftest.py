"""What all tests share: one quiet Spark session per process, and hypothesis profiles."""

from __future__ import annotations

import gc
import os
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from archive import JAVA_OPTIONS
from servers import NoServerError, postgres_url, url_of, valkey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# The machine is shared and small, so time is no reason to fail; in CI a failure must come back when it is run again.
settings.register_profile(
    "default",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", deadline=None, max_examples=2_000, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Spark hands these to the Java it starts, silently: here it lives for seconds or minutes, and is done sooner without its optimising
# compiler; the classes come from an archive, if `make` has made one (tests/archive.py).
os.environ["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS
os.environ["PENSTOCK_UI"] = "false"  # `penstock run` would start a web server each time
os.fsync = lambda _: None  # nothing here loses power, and on a busy disk it takes most of the time


def pytest_collection_finish():
    """Set aside what lives as long as the process: modules and thousands of tests, which each full collection would visit anew."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()  # otherwise DuckDB's binding takes it for leaked


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    try:
        with postgres_url() as url:
            yield url
    except NoServerError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def postgres_database(postgres: str) -> str:
    """The URL of a database of the test's own."""
    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a Valkey server, which stores nothing on disk. Tests take names of their own."""
    with valkey() as server:
        yield url_of(server)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores."""
    from penstock.spark.session.local import session

    started = session("local[2]", "penstock-tests", **{"spark.driver.memory": "3g"})
    yield started
    started.stop()
