"""Spark Connect: patterns and skew give what they give in any other session; flows are refused with the way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from connect_cases import answer

import penstock as ps

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEEDS = range(12)
SCRIPT = """
import json, os, sys
from penstock.spark.session.java import ensure_java
ensure_java()
from pyspark.sql import SparkSession
import penstock as ps
from penstock.errors import PenstockError
from connect_cases import answer

spark = SparkSession.builder.remote("local[2]").getOrCreate()
said = {"class": type(spark).__module__, "refused": []}

def refused(call):
    try:
        call()
    except PenstockError as error:
        said["refused"].append(type(error).__name__ + ": " + str(error))

spark.conf.set("spark.sql.session.timeZone", "America/New_York")
events = spark.range(4)
define = {"a": "id > 1"}
refused(lambda: ps.match(events, "SELECT * WHERE a", order_by="id", define=define))
spark.conf.set("spark.sql.session.timeZone", "Etc/UTC")
refused(lambda: ps.match(events.selectExpr("id", "'x' as text"), "SELECT * WHERE (a AS x) FILTER x[text LIKE '(']", order_by="id", define=define))
flow = ps.Flow("refused")
flow.source("s", ps.rate(1)).sink(ps.noop())
refused(lambda: flow.start(spark, checkpoint="checkpoint"))
refused(lambda: flow.start(checkpoint="checkpoint"))
said["checkpoint"] = os.path.exists("checkpoint")
spark.conf.set("spark.sql.shuffle.partitions", "3")
said["answers"] = []
for seed in map(int, sys.argv[1:]):  # rows are shuffled one by one, or in pages
    spark.conf.set("spark.sql.adaptive.enabled", "true" if seed % 4 else "false")
    said["answers"].append(answer(spark, seed))
keys = spark.range(1000).selectExpr("cast(sqrt(id) as int) as k")
said["skew"] = ps.skew(keys, "k", workers=4).to_json()
print("SAID" + json.dumps(said))
"""


def test_patterns_and_skew_on_spark_connect_are_those_of_a_classic_session_and_flows_are_refused(spark, tmp_path):
    pytest.importorskip("grpc")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    env |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), env.get("PYTHONPATH", "")]),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, SEEDS)], capture_output=True, text=True, check=False, cwd=tmp_path, env=env
    )
    told = [line for line in ran.stdout.splitlines() if line.startswith("SAID")]
    assert told, ran.stderr[-3000:]
    said = json.loads(told[0].removeprefix("SAID"))
    assert said["class"] == "pyspark.sql.connect.session"
    wanted = [answer(spark, seed) for seed in SEEDS]
    assert sum(map(bool, wanted)) > len(SEEDS) // 2
    assert said["answers"] == wanted
    keys = np.sqrt(np.arange(1000)).astype(np.int32)
    assert said["skew"] == ps.skew(keys, workers=4).to_json()
    zone, regex, session, none = said["refused"]
    assert zone == (
        "DeclarationError: The session of Spark Connect has spark.sql.session.timeZone=America/New_York, and results would depend on it; a DataFrame of "
        "Spark Connect is computed in its own session, so call spark.conf.set('spark.sql.session.timeZone', 'UTC') before."
    )
    assert regex.startswith("QueryError: ")
    assert "LIKE '(' is not a regular expression: Java cannot compile it." in regex
    assert session == (
        "DeclarationError: Start was given a SparkSession of Spark Connect, over which flows do not run (penstock.match and penstock.skew do); run the script "
        "where Spark is (spark-submit, or a session of SparkSession.builder.master(...)), or leave out spark, and penstock starts one."
    )
    assert none == (
        "DeclarationError: This process speaks Spark Connect (SPARK_REMOTE, spark.api.mode or a remote session), over which flows do not run "
        "(penstock.match and penstock.skew do); start it without."
    )
    assert not said["checkpoint"]
