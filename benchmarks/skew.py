"""How evenly each distribution strategy spreads skewed keys over workers, beside what is known of it.

    python benchmarks/skew.py                                 all figures: half an hour on two cores, an hour beside other work
    python benchmarks/skew.py --salts 2 --messages 1000000    a look

Keys are Zipf-distributed with exponent z; a salt gives them other names, and so other workers. Each cell (z, n) routes the same messages by each
strategy and salt, through the strategy's own router. Imbalance is what the busiest worker has more than the mean, as a share of all messages.
Asserts nothing: it prints what is needed and what is reached, and writes JSON under benchmarks/results and a plot under docs/images.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import penstock as ps
from penstock.routing.route import hashes_of
from penstock.routing.strategy import Hashes, Strategy

HERE = Path(__file__).parent
Z = (0.4, 0.8, 1.2, 1.6, 2.0)
WORKERS = (5, 10, 50, 100)
KEYS, SENDERS = 10_000, 5
LAST = 10
"""The last window is this part of the messages; in the drift the keys get other names half-way."""

STRATEGIES: dict[str, tuple[Strategy, int | None]] = {
    "KeyGrouping": (ps.KeyGrouping(), None),
    "PartialKeyGrouping": (ps.PartialKeyGrouping(), None),
    "DChoices": (ps.DChoices(), None),
    "WChoices": (ps.WChoices(), None),
    "ConsistentGrouping": (ps.ConsistentGrouping(), None),
    "Histogram, epochs of 100,000": (ps.Histogram(), 100_000),
    "Histogram, epochs of 1,000,000": (ps.Histogram(), 1_000_000),
}
"""By name: the strategy, and the messages of an epoch where its routes depend on that."""
SKETCH = ("DChoices", "WChoices")

Ints = npt.NDArray[np.int64]


def shares(z: float) -> npt.NDArray[np.float64]:
    """The share of each key, the hottest first."""
    weights = np.arange(1, KEYS + 1) ** -z
    return weights / weights.sum()


def names(salt: int) -> Hashes:
    """The hashes of the keys, the hottest first."""
    return hashes_of(np.random.default_rng([2, salt]).permutation(KEYS))


class Routed:
    """What is counted while messages are routed. Ranks: by sender, the number of each message's key, 0 being the hottest."""

    def __init__(self, strategy: Strategy, workers: int) -> None:
        self.router, self.n = strategy.router(workers), workers
        self.loads, self.last = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        self.seen = np.zeros(KEYS * workers, bool)
        self.worst_epoch = self.ns = 0.0

    def route(self, ranks: list[Any], hashed: Hashes, *, last: bool) -> None:
        """One epoch."""
        hashes = {sender: hashed[r] for sender, r in enumerate(ranks)}
        began = time.thread_time_ns()
        routed = self.router.route(hashes)
        self.ns += time.thread_time_ns() - began
        loads = np.zeros(self.n, np.int64)
        for sender, workers in routed.items():
            loads += np.bincount(workers, minlength=self.n)
            self.seen[ranks[sender] * np.int32(self.n) + workers] = True
        self.loads += loads
        self.last += loads if last else 0
        self.worst_epoch = max(self.worst_epoch, float(loads.max() - loads.mean()))

    def figures(self) -> dict[str, float]:
        copies = self.seen.reshape(KEYS, self.n).sum(1)
        return {
            "imbalance": imbalance(self.loads),
            "last_window": imbalance(self.last),
            "worst_epoch": self.worst_epoch,
            "copies_per_key": float(copies.sum() / np.count_nonzero(copies)),
            "ns_per_message": self.ns / int(self.loads.sum()),
        }


def imbalance(loads: Ints) -> float:
    return float((loads.max() - loads.mean()) / loads.sum())


def one_run(strategy: Strategy, n: int, epoch: int | None, ranks: npt.NDArray[np.int32], first: Hashes, then: Hashes) -> Routed:
    """Route all messages; from the half on the keys have the names `then`."""
    messages = len(ranks)
    routed = Routed(strategy, n)
    last = messages - messages // LAST
    cuts = sorted({messages // 2, last, messages, *range(0, messages, epoch or messages)})
    for begin, end in pairwise(cuts):
        part = ranks[begin:end]
        routed.route([part[s::SENDERS] for s in range(SENDERS)], first if end <= messages // 2 else then, last=begin >= last)
    return routed


def cell(z: float, n: int, messages: int, salts: int) -> dict[str, Any]:
    """Medians and maxima over the salts, by strategy, for one exponent and one number of workers."""
    drawn = np.random.default_rng([1, round(10 * z)]).random(messages)
    ranks = np.searchsorted(np.cumsum(shares(z))[:-1], drawn, side="right").astype(np.int32)
    del drawn
    found: dict[str, Any] = {}
    for name, (strategy, epoch) in STRATEGIES.items():
        one_run(strategy, n, epoch, ranks[:10_000], names(0), names(0))  # compiles it
        stays, drifts = [], []
        for salt in range(salts):
            stays.append(one_run(strategy, n, epoch, ranks, names(salt), names(salt)).figures())
            if name in SKETCH:
                drifts.append(one_run(strategy, n, epoch, ranks, names(salt), names((salt + 1) % salts)).figures())
        found[name] = {
            **over(stays, "imbalance"),
            **over(stays, "copies_per_key"),
            **over(stays, "ns_per_message"),
            **over(stays, "last_window"),
            **{f"drift_{k}": v for k, v in (over(drifts, "last_window") if drifts else {}).items()},
            "worst_epoch_messages": max(f["worst_epoch"] for f in stays) if epoch else None,
        }
    return {"z": z, "n": n, "messages": messages, "salts": salts, "p1": float(shares(z)[0]), "strategies": found}


def over(runs: list[dict[str, float]], name: str) -> dict[str, float]:
    values = [run[name] for run in runs]
    return {name: float(np.median(values)), f"{name}_max": max(values)}


def needed(cells: list[dict[str, Any]]) -> list[tuple[str, str, str, bool]]:
    """Lines: of what, needed, reached, whether that is met."""
    lines = []

    def line(what: str, unit: str, most: float, reached: float) -> None:
        lines.append((what, f"<= {most:.3g}{unit}", f"{reached:.3g}{unit}", reached <= most))

    for c in sorted(cells, key=lambda c: (c["n"], c["z"])):
        z, n, m, p1, found = c["z"], c["n"], c["messages"], c["p1"], c["strategies"]
        here, noise = f"z {z}, n {n}", 3 / math.sqrt(m)
        least, reached = p1 - 1 / n, found["KeyGrouping"]["imbalance"]
        lines.append((f"KeyGrouping, {here}: median", f">= {max(least, 0):.3g}", f"{reached:.3g}", reached >= least - noise))
        bound, reached = p1 / 2 - 1 / n, found["PartialKeyGrouping"]["imbalance"]
        if bound > 0.1:  # then nothing but the hottest key decides
            near = abs(reached - bound) <= 0.01
            lines.append((f"PartialKeyGrouping, {here}: median", f"{bound:.3g} +- 0.01", f"{reached:.3g}", near))
        elif bound > 0:
            lines.append((f"PartialKeyGrouping, {here}: median", f">= {bound:.3g}", f"{reached:.3g}", reached >= bound - noise))
        if n >= 50:
            line(f"DChoices, {here}: median", "", 1e-3, found["DChoices"]["imbalance"])
            line(f"DChoices, {here}: max", "", 5e-3, found["DChoices"]["imbalance_max"])
        line(f"WChoices, {here}: max", "", (2 * SENDERS + 10) / m, found["WChoices"]["imbalance_max"])
        line(f"ConsistentGrouping, {here}: max", "", 0.01 / n + 10 * SENDERS / m, found["ConsistentGrouping"]["imbalance_max"])
        for name, (_, epoch) in STRATEGIES.items():
            if epoch:
                line(f"{name}, {here}: worst epoch", " messages", 1, found[name]["worst_epoch_messages"])
            if name in SKETCH:
                drift = found[name]["drift_last_window"]
                line(f"{name}, {here}: last window after a drift, median", "", 2 * found[name]["last_window"], drift)
            line(f"{name}, {here}: ns per message", "", 100, found[name]["ns_per_message"])
    return lines


def plot(cells: list[dict[str, Any]], path: Path) -> None:
    """Imbalance against z: a panel for each number of workers, a line for each strategy."""
    import matplotlib.pyplot as plt  # noqa: PLC0415

    sizes = sorted({c["n"] for c in cells})
    least = 1 / max(c["messages"] for c in cells) / 10
    figure, axes = plt.subplots(1, len(sizes), figsize=(3.2 * len(sizes), 3.6), sharey=True, squeeze=False)
    for axis, n in zip(axes[0], sizes, strict=True):
        of_n = sorted((c for c in cells if c["n"] == n), key=lambda c: c["z"])
        for name, marker in zip(STRATEGIES, "osv^Dx+", strict=True):
            values = [max(c["strategies"][name]["imbalance"], least) for c in of_n]
            axis.plot([c["z"] for c in of_n], values, marker=marker, markersize=4, linewidth=1, label=name)
        axis.set(title=f"{n} workers", xlabel="z", yscale="log", xticks=[c["z"] for c in of_n])
        axis.grid(visible=True, linewidth=0.3)
    axes[0, 0].set_ylabel(f"imbalance, median of salts\n(0 is drawn at {least:.0e})")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncol=4, fontsize=8)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    figure.savefig(path, dpi=110)


def main() -> None:
    options = argparse.ArgumentParser(description="Balance of the distribution strategies on skewed keys.")
    options.add_argument("--messages", type=int, default=10_000_000)
    options.add_argument("--salts", type=int, default=20)
    options.add_argument("--processes", type=int, default=2)
    options.add_argument("--out", type=Path, default=HERE / "results" / "skew.json")
    options.add_argument("--plot", type=Path, default=HERE.parent / "docs" / "images" / "skew.png")
    asked = options.parse_args()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    cells: list[dict[str, Any]] = []
    began = time.perf_counter()
    with ProcessPoolExecutor(asked.processes) as pool:
        grid = [(z, n) for n in sorted(WORKERS, reverse=True) for z in Z]
        for done in as_completed(pool.submit(cell, z, n, asked.messages, asked.salts) for z, n in grid):
            cells.append(done.result())
            print(f"{time.perf_counter() - began:.0f} s: z {cells[-1]['z']}, n {cells[-1]['n']}", file=sys.stderr, flush=True)
    cells.sort(key=lambda c: (c["n"], c["z"]))
    for what, wanted, reached, met in needed(cells):
        print(f"{what}: needed {wanted}, reached {reached}{'' if met else '   NOT MET'}")
    about = {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "commit": git.stdout.strip(),
        "seconds": round(time.perf_counter() - began),
        "keys": KEYS,
        "senders": SENDERS,
        "drift": f"keys get other names after half of the messages; the last window is the last 1/{LAST} of them",
        "ns_per_message": "processor time of the routing thread",
    }
    asked.out.write_text(json.dumps({**about, "cells": cells}, indent=1) + "\n")
    plot(cells, asked.plot)


if __name__ == "__main__":
    main()
