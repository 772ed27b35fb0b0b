"""Draw the diagrams of the documents from their sources: ``python docs/diagrams.py`` rewrites them in place.

The machines of a rescale and of a group's member come from the tables that the code runs by, what happens when a member joins or leaves from such machines that are
run here, the architecture from ``images/architecture.mmd``, the duration of epochs during a rescale from ``benchmarks/results/rescale.json``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from penstock.protocol.group.events import Acquire, Edit, Event, Release
from penstock.protocol.group.partition import AFTER, Partition
from penstock.protocol.group.partition import TRANSITIONS as OF_A_PARTITION
from penstock.protocol.group.store import Granted
from penstock.protocol.rescale import TRANSITIONS
from penstock.testing.group.process import Process
from penstock.testing.group.schedule import Disturbance, Schedule
from penstock.testing.group.simulator import World

HERE = Path(__file__).parent
GUIDE = HERE / "guide-rescaling.md"
GROUPS = HERE / "internals" / "groups.md"
RUN_IT_TWICE = HERE / "guide-groups.md"
README = HERE.parent / "README.md"
ARCHITECTURE = HERE / "images" / "architecture.mmd"
EPOCHS = HERE / "images" / "rescale-short.svg"
FIGURES = HERE.parent / "benchmarks" / "results" / "rescale.json"
_BLOCK = re.compile(r"(<!-- diagram: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rescale() -> str:
    """The state machine of a rescale, as Mermaid."""
    lines = ["stateDiagram-v2", "    [*] --> settled"]
    lines += [f"    {before} --> {after}: {what} ({rule})" for before, what, after, rule in TRANSITIONS]
    return "\n".join(lines) + "\n"


def group() -> str:
    """What a member of a group does about one partition, as Mermaid."""
    lines = ["stateDiagram-v2", "    [*] --> elsewhere"]
    lines += [f"    {before} --> {after}: {what} ({rule})" for before, what, after, rule in OF_A_PARTITION]
    return "\n".join(lines) + "\n"


class _Told(Process):
    """A member that says what becomes of its partitions."""

    def tell(self, event: Event) -> None:
        go, world = Partition.go, self.world

        def told(partition: Partition, what: str) -> None:
            before = partition.state
            go(partition, what)
            after = AFTER[before, what]
            world.lines.append(f"Note over {world.of(self)}: partition {partition.number}: {what}, now {after}")

        with patch.object(Partition, "go", told):
            super().tell(event)


class _Pictured(World):
    """Two members and two partitions, of which a member joins or leaves after two seconds while an entry of each partition is in hand."""

    process = _Told

    def __init__(self, starts: list[float], change: str) -> None:
        self.lines: list[str] = []
        changes = [Disturbance(1.999, "entries", amount=1.0), Disturbance(2.0, change, 1, 2.0)]
        super().__init__(Schedule(7, 2, starts, True, 2.0, [0, 0], 0.05, calm=True, disturbances=changes), Random(7))

    def of(self, process: Process) -> str:
        return "AB"[self.processes.index(process)]

    def disturb(self, each: Disturbance) -> None:
        if each.kind != "entries":
            self.lines.clear()
        super().disturb(each)

    def step(self, process: Process, command: Any) -> Any:
        who, lines, answer = self.of(process), self.lines, super().step(process, command)
        match command:
            case Edit(_, document, _) if answer is True:
                shares = ", ".join(
                    f"{'AB'[int(name[1:])]} has {list(e.partitions)}" for name, e in sorted(document.members.items())
                )
                lines += [
                    f"{who}->>R: membership document of epoch {document.epoch}: {shares}",
                    f"R-->>{'AB'.replace(who, '')}: announced",
                ]
            case Acquire(partition):
                given = isinstance(answer, Granted)
                lines.append(
                    f"{who}->>R: take the lock of partition {partition}: {f'token {answer.token}' if given else 'not free'}"
                )
            case Release(partition):
                lines.append(f"{who}->>R: release the lock of partition {partition}")
        return answer

    def step_ack(self, process: Process, partition: int, incarnation: str, token: int, entry: int) -> bool:
        self.lines.append(f"{self.of(process)}->>R: ack entry {entry} of partition {partition} with token {token}")
        return super().step_ack(process, partition, incarnation, token, entry)


def joining() -> str:
    """What two members do when the second one joins, as Mermaid: the machine runs, and this is what it did."""
    return _sequence("A, has both", "B, joins", _Pictured([0.0], "join"))


def leaving() -> str:
    """Likewise when the second one leaves."""
    return _sequence("A, stays", "B, leaves", _Pictured([0.0, 0.2], "leave"))


def _sequence(first: str, second: str, world: _Pictured) -> str:
    world.run()
    names = [f"participant A as {first}", "participant R as Redis", f"participant B as {second}"]
    return "\n".join(["sequenceDiagram", *(f"    {line}" for line in (*names, *world.lines))]) + "\n"


def architecture() -> str:
    """What penstock consists of, as Mermaid."""
    return ARCHITECTURE.read_text(encoding="utf-8")


def drawn(text: str) -> str:
    """A document with its diagrams as they should be."""
    sources = {"rescale": rescale, "group": group, "joining": joining, "leaving": leaving, "architecture": architecture}
    return _BLOCK.sub(lambda found: f"{found[1]}```mermaid\n{sources[found[2]]()}```\n{found[3]}", text)


def epochs() -> str:
    """Duration of each epoch around a rescale of a million keys, with a step budget and all at once, as SVG."""
    results = json.loads(FIGURES.read_text(encoding="utf-8"))
    panels = [
        ("within the step budget", results["budget, 1,000,000 keys"]),
        ("all state at once (an older version)", results["at once, 1,000,000 keys"]),
    ]
    parts = [_panel(title, result, 20 + 190 * i) for i, (title, result) in enumerate(panels)]
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 390" font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="760" height="390" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def _panel(title: str, result: dict[str, Any], top: int, margin: int = 40) -> str:
    """One panel: `margin` epochs before the rescale and after it, as multiples of the steady p99."""
    begin, end = result["rescale_epochs"][0]
    first = max(0, begin - margin)
    ratios = [ms / result["steady_p99_ms"] for ms in result["epochs_ms"][first : end + margin]]
    step, base, high = 640 / len(ratios), top + 140, 110 / 2.0
    points = " ".join(f"{90 + step * (i + 0.5):.1f},{base - high * ratio:.1f}" for i, ratio in enumerate(ratios))
    left, right = (90 + step * (at - first) for at in (begin, end))
    lines = [
        f'<rect x="{left:.1f}" y="{top + 25}" width="{right - left:.1f}" height="115" fill="#f2c14e" fill-opacity="0.4"/>',
        f'<line x1="90" y1="{base}" x2="730" y2="{base}" stroke="#333333"/>',
        f'<line x1="90" y1="{base - high:.1f}" x2="730" y2="{base - high:.1f}" stroke="#777777" stroke-dasharray="5 4"/>',
        f'<text x="84" y="{base - high + 4:.1f}" text-anchor="end">steady p99</text>',
        f'<text x="84" y="{base + 4}" text-anchor="end">0</text>',
        f'<polyline points="{points}" fill="none" stroke="#20639b" stroke-width="1.5"/>',
        f'<text x="90" y="{top + 14}">{title}: {result["rescale_s"]:.1f} s, longest epoch {result["max_ratio"]:.2f} × steady p99</text>',
        f'<text x="730" y="{base + 18}" text-anchor="end">epochs; 1,000,000 keys, 3 to 4 workers</text>',
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    for document in (GUIDE, GROUPS, RUN_IT_TWICE, README):
        document.write_text(drawn(document.read_text(encoding="utf-8")), encoding="utf-8")
    EPOCHS.write_text(epochs(), encoding="utf-8")
