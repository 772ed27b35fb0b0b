"""Patterns: what one awful delay did to an aircraft's next departures, in February 2013, the month of a blizzard.

Needs the data: pip install 'penstock[demo]'. The same query over a DataFrame and in a flow; both find the same.
"""

import tempfile
from pathlib import Path

import penstock as ps
from penstock.demo.data import SCHEMA, read_flights, write_replay
from penstock.spark.session.local import session

KINDS = {"on_time": "dep_delay <= 15", "late": "dep_delay > 15", "awful": "dep_delay > 60"}
CASCADES = """
    SELECT cause[origin, dep_delay], knock_on[origin, dep_delay]
    WHERE on_time : awful AS cause : late:+ AS knock_on : on_time    -- ':' is right after, ':+' again and again
    PARTITION BY [tailnum] WITHIN 2 DAYS
"""
FLOWN = "tailnum IS NOT NULL AND dep_delay IS NOT NULL"

folder = Path(tempfile.mkdtemp(prefix="penstock-example-"))
year = read_flights()
write_replay(year[year["heard_at"].between("2013-02-01", "2013-03-01")], folder / "flights")

flow = ps.Flow("patterns")
source = ps.files(folder / "flights", SCHEMA, max_files_per_epoch=1)
flights = flow.source("flights", source, time="at", lateness="24 hours")
cascades, stored = flights.where(FLOWN).key_by("tailnum").match(CASCADES, define=KINDS), ps.memory("patterns")
cascades.sink(stored)

if __name__ == "__main__":
    spark = session()
    flown = spark.read.parquet(str(folder / "flights")).where(FLOWN)
    found = ps.match(flown, CASCADES, order_by=["at", "carrier", "flight"], define=KINDS)
    batch = {(row["tailnum"], row["match_start"]): row for row in found.toArrow().to_pylist()}

    flow.start(spark, checkpoint=folder / "checkpoint", trigger="available_now").await_termination()
    live = stored.table().to_pylist()

    # The frontier is held a day behind the newest flight, so no flight is late and both ways see the same.
    assert len(live) == len(batch) > 50
    assert all(batch[row["tailnum"], row["match_start"]] == row for row in live)

    # All matches of one event, without telling any of them: how many ways lead from a late departure to an awful one.
    counts = ps.match(
        flown, "SELECT COUNT(*) WHERE late+ ; awful PARTITION BY [origin] WITHIN 6 HOURS",
        order_by=["at", "carrier", "flight"], define=KINDS,
    )  # fmt: skip
    most = max(row["matches"] for row in counts.collect())
    longest = max(live, key=lambda row: len(row["knock_on"]))
    print(f"{len(live)} cascades, the longest of {longest['tailnum']}: {len(longest['knock_on']) + 1} late departures.")
    print(f"{most:,} ways to an awful departure within six hours.")
    assert most > 2**90
