"""Shipped for users: run and test a flow in this process, without Spark."""

from __future__ import annotations

from penstock.testing.harness import Crash, Harness

__all__ = ["Crash", "Harness"]
