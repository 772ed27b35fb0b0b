"""A flow in a group, as an application of its own: started by `test_flow_groups` as a process.

Args: the server's URL, the folder of the group, the member's name, the number of partitions, the sinks' URLs.
"""

from __future__ import annotations

import signal
import sys
import threading

import penstock as ps
from penstock.spark.session.local import session

SCHEMA = "card string, at timestamp, amount long"


def total(card, event, state):
    n = (state or 0) + event.amount
    return (card, event.at, n), n


def flow_of(url: str, sinks: list[str], partitions: int) -> ps.Flow:
    flow = ps.Flow("cards")
    payments = flow.source("payments", ps.redis_streams(url, "payments", partitions, SCHEMA), time="at", lateness="2 seconds")
    cards = payments.key_by("card", distribute=ps.ByPartition())
    totals = cards.stateful_map(total, "card string, at timestamp, total long")
    windows = cards.window(ps.tumbling("10 seconds")).aggregate(n=ps.count(), amount=ps.sum("amount"))
    for sink in sinks:
        kind = sink.partition(":")[0]
        totals.sink(ps.sql(sink, "totals"), name=f"totals_{kind}")
        windows.sink(ps.sql(sink, "windows"), name=f"windows_{kind}")
    return flow


def main() -> None:
    url, folder, member, partitions, *sinks = sys.argv[1:]
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    spark = session(app_name=member, master="local[2]")
    group = ps.Group(url, "eu", member=member, lease="2 seconds", grace="8 seconds")
    run = flow_of(url, sinks, int(partitions)).start(spark, checkpoint=folder, group=group, trigger="100 milliseconds")
    print("joined", flush=True)
    while not (ended.wait(0.1) or run.await_termination(0)):
        print("owns", sorted(n for n, part in run.partitions.items() if part.active), flush=True)
    run.shutdown(timeout=60)
    print(run.outcome, flush=True)


if __name__ == "__main__":
    main()
