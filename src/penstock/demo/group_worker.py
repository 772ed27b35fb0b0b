"""An application of ``penstock demo group``, in a process of its own: a consumer that counts entries per key.

A count is a set of entry ids in Redis, so an entry that comes again, because a process was killed between its count and its ack, counts once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from penstock.group.consumer import Consumer, Entry
from penstock.group.settings import Group
from penstock.redis_client.counts import Counts


def main(settings: str) -> None:
    """Work until SIGTERM.

    Args:
        settings: JSON: address of the server, group, stream, partitions, lease, this member's name, and its log: when it has handled which partition.
    """
    given = json.loads(settings)
    counts = Counts(given["url"], given["stream"])
    group = Group(given["url"], given["group"], member=given["member"], lease=given["lease"], grace="2 seconds")
    with Path(given["log"]).open("a", buffering=1, encoding="utf-8") as log:

        def handle(partition: int, entries: list[Entry]) -> None:
            counts.add([(entry.fields["user"], entry.id) for entry in entries])
            log.write(f"{time.monotonic()} {partition} {len(entries)}\n")

        Consumer(group, given["stream"], given["partitions"]).run(handle)


if __name__ == "__main__":
    main(sys.argv[1])
