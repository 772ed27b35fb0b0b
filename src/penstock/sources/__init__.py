"""Where records come from: the contract and a file for each kind; readers in `penstock.spark.sources` read them."""

from __future__ import annotations

from penstock.sources.base import Source
from penstock.sources.files import Files, files
from penstock.sources.rate import Rate, rate
from penstock.sources.read_back import ReadBack, read_back
from penstock.sources.redis_streams import RedisStreams, redis_streams

__all__ = ["Files", "Rate", "ReadBack", "RedisStreams", "Source", "files", "rate", "read_back", "redis_streams"]
