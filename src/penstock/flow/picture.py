"""A flow as a picture: SVG, from sources on the left to outputs on the right. It works on a flow that is not complete yet.

Read next: `penstock.flow.explain`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.arrow.html_tables import escaped
from penstock.flow import plan as p
from penstock.flow.explain import ours, read_inputs, remembered, way
from penstock.routing.key_grouping import KeyGrouping

_WIDTH, _GAP, _LINE, _PAD, _BETWEEN = 200, 56, 16, 8, 14
_LETTERS: Final = 29
_MOST_BOXES: Final = 200
_COLOURS: Final = {"source": "#dcebf9", "step": "#f4f4f4", "region": "#e3f3df", "output": "#fbecd5"}


@dataclass(eq=False)
class _Box:
    """What is drawn as one box. `lines`: the first is its title; `about`: shown when the mouse rests on it."""

    kind: str
    lines: list[str]
    about: str
    before: list[_Box] = field(default_factory=list)
    level: int = 0
    top: float = 0.0

    @property
    def height(self) -> int:
        return _LINE * len(self.lines) + 2 * _PAD

    @property
    def left(self) -> int:
        return self.level * (_WIDTH + _GAP) + 1

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def picture(plan: p.Plan) -> str:
    """The picture as an ``<svg>`` element; as text, if it would have more boxes than anybody looks at."""
    boxes = _boxes(plan)
    if len(boxes) > _MOST_BOXES:
        return f"<div>flow {escaped(plan.name)}: {len(plan.sources)} sources, {len(plan.regions)} regions, {len(plan.outputs)} outputs</div>"
    width, height = _placed(boxes)
    size = f'width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">',
        f"<title>flow {escaped(plan.name)}</title>",
    ]
    parts += [_arrow(before, box) for box in boxes for before in box.before]
    parts += [_drawn(box) for box in boxes]
    return "".join([*parts, "</svg>"])


def _boxes(plan: p.Plan) -> list[_Box]:
    """All boxes, each behind those that it reads."""
    found: dict[int, _Box] = {}

    def box(node: p.Node) -> _Box:
        if isinstance(node, p.AsideNode):
            return box(node.source)
        if isinstance(node, p.RegionOutput):
            return of_region(node.region)
        if id(node) not in found:
            if isinstance(node, p.SourceNode):
                lines = [f"source {node.name}", node.connector.describe(), *([f"time {node.time}"] if node.time else [])]
                found[id(node)] = _Box("source", lines, way(node))
            else:
                assert isinstance(node, p.StepNode)
                before = [box(n) for n in node.inputs]
                if ours(node):
                    return before[0]
                found[id(node)] = _Box("step", [node.step.describe()], node.step.describe(), before)
        return found[id(node)]

    def of_region(region: p.Region) -> _Box:
        if id(region) not in found:
            keys = f"region {region.name}" if region.keys.names else f"stage {region.name}"
            by = [f"by {', '.join(region.keys.names)}"] if region.keys.names else []
            how = [region.distribute.describe()] if region.distribute != KeyGrouping() else []
            steps = [s.operator.describe() for s in region.steps]
            about = "; ".join(f"{s.operator.describe()} remembers {remembered(s.operator)}" for s in region.steps)
            made = found[id(region)] = _Box("region", [keys, *by, *how, *steps], about or keys)
            made.before = list(dict.fromkeys(box(n) for n in read_inputs(plan, region)))
        return found[id(region)]

    for source in plan.sources:
        box(source)
    for region in plan.regions:
        of_region(region)
    for output in plan.outputs:
        aside = isinstance(output.node, p.AsideNode)
        lines = [f"output {output.name}", repr(output.sink), *(["what is left out"] if aside else [])]
        found[id(output)] = _Box("output", lines, f"{way(output.node)} → {output.sink!r}", [box(output.node)])
    return list(found.values())


def _placed(boxes: list[_Box]) -> tuple[int, float]:
    """Give each box its place; returns width and height of the whole."""
    levels: dict[int, list[_Box]] = {}
    for box in _in_order(boxes):
        box.level = 1 + max((b.level for b in box.before), default=-1)
        levels.setdefault(box.level, []).append(box)
    bottom = 0.0
    for level in sorted(levels):
        at = 1.0
        column = levels[level]
        if level:
            column.sort(key=lambda b: sum(x.middle for x in b.before) / max(1, len(b.before)))
        for box in column:
            wished = sum(x.middle for x in box.before) / len(box.before) - box.height / 2 if box.before else at
            box.top = max(at, wished)
            at = box.top + box.height + _BETWEEN
        bottom = max(bottom, at - _BETWEEN)
    return (max(levels, default=0) + 1) * (_WIDTH + _GAP) - _GAP + 2, bottom + 1


def _in_order(boxes: list[_Box]) -> list[_Box]:
    """The boxes, each behind those that it reads."""
    done: dict[int, _Box] = {}

    def visit(box: _Box) -> None:
        if id(box) not in done:
            for before in box.before:
                visit(before)
            done[id(box)] = box

    for box in boxes:
        visit(box)
    return list(done.values())


def _drawn(box: _Box) -> str:
    texts = "".join(
        f'<text x="{box.left + _PAD}" y="{box.top + _PAD + _LINE * i + 12:g}" fill="#222"{_BOLD if i == 0 and len(box.lines) > 1 else ""}>'
        f"{escaped(line if len(line) <= _LETTERS else line[: _LETTERS - 1] + '…')}</text>"
        for i, line in enumerate(box.lines)
    )
    frame = f'x="{box.left}" y="{box.top:g}" width="{_WIDTH}" height="{box.height}" rx="5" fill="{_COLOURS[box.kind]}" stroke="#888"'
    return f"<g><title>{escaped(box.about)}</title><rect {frame}/>{texts}</g>"


_BOLD: Final = ' font-weight="bold"'


def _arrow(start: _Box, end: _Box) -> str:
    x, to = start.left + _WIDTH, end.left
    bend = (x + to) / 2
    curve = f"M{x} {start.middle:g} C{bend:g} {start.middle:g} {bend:g} {end.middle:g} {to} {end.middle:g}"
    return f'<path d="{curve}" fill="none" stroke="#888"/><path d="M{to} {end.middle:g} l-7 -4 v8 z" fill="#888"/>'


__all__ = ["picture"]
