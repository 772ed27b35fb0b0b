"""Delay cascades of aircraft, and hourly figures of airports, over the flights that left New York in January 2013.

Needs the data: pip install 'penstock[demo]'. `penstock demo` does the same for the whole year.
"""

import tempfile
from pathlib import Path

import penstock as ps
from penstock.demo.data import read_flights, write_replay

LATE = 15  # minutes


def follow(tailnum, flight, late_in_a_row):
    """Count the late departures of an aircraft; give out three or more in a row when one on time ends them."""
    late_in_a_row = late_in_a_row.count if late_in_a_row else 0
    if flight.dep_delay > LATE:
        return None, (late_in_a_row + 1,)
    return ((tailnum, flight.at, late_in_a_row) if late_in_a_row >= 3 else None), None


folder = Path(tempfile.mkdtemp(prefix="penstock-example-"))
january = read_flights()[:26_000]
write_replay(january, folder / "flights")

flow = ps.Flow("flights")
flights = flow.source(
    "flights",
    ps.files(
        folder / "flights",
        "at timestamp, carrier string, flight int, tailnum string, origin string, dest string, dep_delay int",
        max_files_per_epoch=1,
    ),
    time="at",  # the scheduled departure; a flight is heard of when it leaves, so it comes late by as much as it was delayed
    lateness="6 hours",
)
cascades = (
    flights.where("tailnum IS NOT NULL AND dep_delay IS NOT NULL")
    .key_by("tailnum")
    .stateful_map(follow, "tailnum string, ended timestamp, late int", state="count int")
)
hours = flights.key_by("origin").window(ps.tumbling("1 hour")).aggregate(n=ps.count(), worst=ps.max("dep_delay"))

outputs = cascades_out, hours_out, late_out = ps.memory("cascades"), ps.memory("hours"), ps.memory("late")
for stream, output in zip((cascades, hours, flights.late), outputs, strict=True):
    stream.sink(output)

if __name__ == "__main__":
    flow.start(checkpoint=folder / "checkpoint", trigger="available_now").await_termination()

    n = sum(hours_out.table()["n"].to_pylist())
    assert n + late_out.table().num_rows == len(january)
    longest = max(cascades_out.table()["late"].to_pylist())
    print(f"{n:,} flights, {late_out.table().num_rows} too late, longest cascade: {longest} flights")
    assert longest > 5
