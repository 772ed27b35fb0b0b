"""Who may write a sink: the decisions on a held `Mark`, without any I/O, the same for every sink.

Invariants: a mark's run never falls, a mark's epoch never falls, and a mark never changes its flow.

Read next: `penstock.sinks.base`, then `penstock.sinks.sql`.
"""

from __future__ import annotations

from penstock.errors import DeclarationError, FencedError, SinkAheadError, SinkError
from penstock.types import Mark, Refusal


def refuse_claim(held: Mark | None, claim: Mark, *, target: str, remedy: str) -> None:
    """Refuse a claim that would mix two flows, wake up an old run, or lose what only the sink knows.

    Args:
        held: The mark found in the sink, None if there is none.
        claim: The mark given to `Sink.open`.
        target: What holds the rows, for the message: ``"table 'totals'"``.
        remedy: How to start afresh there, for the message: ``"delete the table and its mark"``.

    Raises:
        SinkAheadError: The mark is of another flow, or more than one epoch ahead. Nothing was changed.
        FencedError: The mark is of a newer run. Nothing was changed.

    Example:
        >>> refuse_claim(None, Mark("f", "out", run=1), target="table 't'", remedy="drop it")
    """
    if held is None or (held.flow != claim.flow and held.epoch < 0):
        return  # a first start that failed before it stored anything leaves nothing to protect
    if held.flow != claim.flow:
        raise SinkAheadError(
            f"{target} holds the rows of another flow or checkpoint ({held.flow!r}, this one is {claim.flow!r}): "
            f'start with recover="recompute" if that checkpoint is lost, choose another place for output {claim.output!r}, or {remedy}.'
        )
    if held.run > claim.run:
        raise FencedError(
            f"Run {claim.run} may not write {target} because run {held.run} of the same flow owns it now: stop this run."
        )
    if held.epoch > claim.epoch + 1:
        raise SinkAheadError(
            f"{target} holds output {claim.output!r} up to epoch {held.epoch}, but the checkpoint knows only {claim.epoch}: "
            f'use the checkpoint that wrote it, start with recover="recompute", or {remedy}.'
        )


def holds_epoch(held: Mark | None, mark: Mark, *, target: str) -> bool:
    """Whether the sink already holds the epoch that `mark` closes.

    Args:
        held: The mark found in the sink.
        mark: The mark given to `Sink.write`.
        target: What holds the rows, for the message.

    Returns:
        True if the rows must be skipped, False if they must be stored.

    Raises:
        FencedError: A newer run, or another flow, has taken the sink. Nothing was changed.
        SinkError: The mark is gone, or older than the run that claimed it. Nothing was changed.
    """
    if held is None:
        raise SinkError(
            f"{target} has no mark of output {mark.output!r} though run {mark.run} should have claimed it: "
            "open the sink first, or start the flow again if somebody deleted the mark."
        )
    if held.flow != mark.flow or held.run > mark.run:
        raise FencedError(
            f"Run {mark.run} of flow {mark.flow!r} may not write {target} because run {held.run} of flow {held.flow!r} "
            "owns it now: stop this run."
        )
    if held.run < mark.run:
        raise SinkError(
            f"{target} has fallen back to a mark of run {held.run}, but run {mark.run} claimed it: "
            "it was restored from a backup while the flow ran; start the flow again."
        )
    return held.epoch >= mark.epoch


def refuse_updates(updates: bool, *, target: str, key: tuple[str, ...]) -> None:
    """Refuse a running aggregate where rows can only be appended.

    Args:
        updates: As given to `Sink.validate`.
        target: What would hold the rows, for the message.
        key: The output's key, shown in the message; empty if unknown.

    Raises:
        DeclarationError: `updates` is true. Nothing was changed.
    """
    if updates:
        shown = ", ".join(repr(name) for name in key) or "..."
        raise DeclarationError(
            f"{target} can only append, but this output is a running aggregate, whose later rows take the place of earlier ones: "
            f'write it with sql(..., mode="upsert", key=[{shown}]), or close it with a window.'
        )


def table_refusal(mine: str, theirs: str) -> Refusal | None:
    """Why two outputs cannot be kept in one table, as the rest of a sentence; None: they can.

    Args:
        mine: How the one is kept: ``append``, ``replace``, or ``upsert by a, b``.
        theirs: How the other is.

    Example:
        >>> table_refusal("append", "append"), table_refusal("upsert by a", "append")
        (None, Refusal(sentence='upsert would delete rows that the other one has appended'))
    """
    if "replace" in (mine, theirs):
        return Refusal("replace would delete the rows of the other one")
    if mine == theirs:
        return None
    if "append" in (mine, theirs):
        return Refusal("upsert would delete rows that the other one has appended")
    return Refusal("they are upserted by different keys, so each would delete rows of the other")
