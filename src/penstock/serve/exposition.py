"""Figures as Prometheus reads them: its text format, of a page or of a file for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from penstock.progress.figures import Figure

Labels = Mapping[str, object]


def exposition(
    prefix: str, figures: Mapping[str, Figure], samples: Iterable[tuple[Labels, Mapping[str, Any]]]
) -> Iterator[str]:
    """Lines of the text format, without their ends: for each figure its help, its type, and a sample for each thing that has a value.

    Args:
        prefix: Before each figure's name.
        figures: What they are, by name.
        samples: Of each thing its labels, and its values by the figures' names; None: there is no sample.

    Example:
        >>> lag = Figure("gauge", "entries", "Entries behind")
        >>> list(exposition("penstock_group", {"lag": lag}, [({"group": "g"}, {"lag": 3})]))
        ['# HELP penstock_group_lag Entries behind', '# TYPE penstock_group_lag gauge', 'penstock_group_lag{group="g"} 3']
    """
    known = list(samples)
    for name, figure in figures.items():
        full = f"{prefix}_{name}" + "_total" * (figure.kind == "counter")
        yield f"# HELP {full} {_escaped(figure.help)}"
        yield f"# TYPE {full} {figure.kind}"
        for labels, values in known:
            if values[name] is not None:
                about = ",".join(f'{label}="{_quoted(value)}"' for label, value in labels.items())
                yield f"{full}{{{about}}} {float(values[name]):.17g}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(value: object) -> str:
    return _escaped(str(value)).replace('"', r"\"")


__all__ = ["exposition"]
