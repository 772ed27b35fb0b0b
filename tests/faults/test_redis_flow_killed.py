"""From one Redis stream to another over Spark: the driver is killed between the sink and the checkpoint and at a random step, the server too, and every row is stored once."""

from __future__ import annotations

import os
import random
import signal

import children
import pytest
import redis_flow

import penstock as ps
from penstock.redis_client.connection import connect
from servers import url_of, valkey

pytestmark = [pytest.mark.spark, pytest.mark.fault]


def held(url):
    rows = ps.redis_streams(url, "out", redis_flow.MADE, redis_flow.OUT).records({})
    return sorted((tuple(row.values()) for row in rows.select(["k", "number", "total"]).to_pylist()), key=repr) if rows else []


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_flow_that_is_killed_stores_every_row_once(seed, tmp_path):
    dice, made = random.Random(seed), redis_flow.records(seed, 200)
    with valkey(keep=True) as server:
        url = url_of(server)
        with ps.Producer(url, "in", redis_flow.PARTITIONS) as producer:
            client = connect(url)
            for record in made:
                fields = {name: value for name, value in record.items() if value is not None}
                client.xadd(f"{{in:{len(record['k'] or '') % 2}}}", fields)
            del producer
        options = {"url": url, "checkpoint": str(tmp_path / "ckpt")}
        stored = {"kill": dice.randint(1, 3), "step": "stored "}  # the sink has the epoch, the checkpoint does not
        for kill in dice.sample([stored, {"kill": dice.randint(3, 24)}], 2):
            ended = children.run("redis_flow.py", {**options, **kill}, tmp_path)
            assert ended.code in (0, -signal.SIGKILL), ended.err
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
            server.stop()
            server.start()
        ended = children.run("redis_flow.py", {**options, "kill": 0}, tmp_path)
        assert ended.code == 0, ended.err
        assert held(url) == redis_flow.expected(made)
