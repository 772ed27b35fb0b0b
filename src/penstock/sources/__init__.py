"""Where records come from: declarations only; `penstock.spark.sources.streams` reads them."""

from __future__ import annotations

from penstock.sources.connectors import Files, Rate, files, rate

__all__ = ["Files", "Rate", "files", "rate"]
