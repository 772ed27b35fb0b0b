"""A member of a group in a process of its own; see `test_group_killed`.

It notes in its log what it did: ``C partition id`` committed, ``F partition id`` refused, ``H partition id`` handled.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import penstock as ps
from penstock.redis_client.connection import connect


def main():
    options = json.loads(Path(sys.argv[1]).read_text())
    group = ps.Group(
        options["url"], "g", member=options.get("member"), lease=options["lease"], grace=options.get("grace", "2 seconds")
    )
    consumer = ps.Consumer(group, options["stream"], options["partitions"], batch=10, on_error=options.get("on_error", "stop"))
    log = Path(options["log"]).open("a", buffering=1)  # noqa: SIM115  (until the end)
    pause_s = options.get("pause_s", 0.0)
    if options.get("loop"):
        for partition, entries in consumer:
            time.sleep(pause_s)
            word = "C" if consumer.ack(partition, entries) else "F"
            log.write("".join(f"{word} {partition} {e.id}\n" for e in entries))
        return
    client = connect(options["url"])

    def handle(partition, entries):
        log.write("".join(f"H {partition} {e.id}\n" for e in entries))
        time.sleep(pause_s)
        pipe = client.pipeline(transaction=False)
        for e in entries:
            pipe.hset(f"count:{options['stream']}:{e.fields['key']}", e.id, e.fields["n"])  # the same again if it comes again
        pipe.execute()

    consumer.run(handle)


if __name__ == "__main__":
    main()
