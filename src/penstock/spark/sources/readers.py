"""Which reader reads a declared source over Spark."""

from __future__ import annotations

from typing import Final

from penstock.flow.plan import SourceNode
from penstock.sources.base import Source, Streaming
from penstock.sources.files import Files
from penstock.sources.rate import Rate
from penstock.sources.read_back import ReadBack
from penstock.sources.redis_streams import RedisStreams
from penstock.spark.sources.files import FilesReader
from penstock.spark.sources.rate import RateReader
from penstock.spark.sources.read_back import ReadBackReader
from penstock.spark.sources.reader import Reader, unreadable
from penstock.spark.sources.redis_streams import RedisStreamsReader
from penstock.spark.sources.streaming import StreamingReader

READERS: Final[dict[type[Source], type[Reader]]] = {
    Files: FilesReader,
    Rate: RateReader,
    ReadBack: ReadBackReader,
    RedisStreams: RedisStreamsReader,
    Streaming: StreamingReader,
}
"""By declaration, its reader. A source from outside adds its own."""


def reader_of(source: SourceNode) -> type[Reader]:
    """The reader of a source.

    Raises:
        DeclarationError: There is none.
    """
    for kind in type(source.connector).__mro__:
        if kind in READERS:
            return READERS[kind]
    raise unreadable(source, source.connector)


__all__ = ["READERS", "reader_of"]
