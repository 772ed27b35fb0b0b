"""Flink's half of `flink.py`; runs in an environment of its own with PyPI's apache-flink. Answers each line of JSON with one."""

import json
import sys
import time

from pyflink.table import EnvironmentSettings, TableEnvironment

EVENTS, WORKERS, FORMULAS, QUERIES = json.loads(sys.argv[1])


def environment():
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", str(WORKERS))
    tables.get_config().set("table.exec.mini-batch.enabled", "true")
    tables.get_config().set("table.exec.mini-batch.allow-latency", "5 s")
    tables.get_config().set("table.exec.mini-batch.size", "100000")
    tables.execute_sql(f"""
        CREATE TABLE events (
            id BIGINT, k AS {FORMULAS["k"]}, kind AS {FORMULAS["kind"]}, ts AS TO_TIMESTAMP_LTZ(id, 3), WATERMARK FOR ts AS ts
        ) WITH (
            'connector' = 'datagen', 'rows-per-second' = '1000000000',
            'fields.id.kind' = 'sequence', 'fields.id.start' = '0', 'fields.id.end' = '{EVENTS - 1}'
        )""")
    return tables


def timed(select: str, columns: str) -> float:
    tables = environment()
    tables.execute_sql(f"CREATE TABLE nowhere ({columns}) WITH ('connector' = 'blackhole')")
    start = time.perf_counter()
    tables.execute_sql(f"INSERT INTO nowhere {select}").wait()
    return time.perf_counter() - start


def counted(select: str) -> int:
    last = 0
    with environment().execute_sql(f"SELECT COUNT(*) FROM ({select})").collect() as rows:
        for row in rows:
            last = row[0]
    return last


for line in sys.stdin:
    name, what = json.loads(line)
    if name is None:
        answer = timed("SELECT id, k, kind FROM events", "id BIGINT, k INT, kind INT")
    else:
        matched = f"SELECT * FROM events MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {QUERIES[name]})"
        answer = counted(matched) if what == "matches" else timed(matched, "k INT, a BIGINT, b BIGINT, c BIGINT")
    print(json.dumps({"answer": answer}), flush=True)
