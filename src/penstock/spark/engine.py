"""An epoch over Spark: DataFrames for frames, one Spark task per worker of a region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.arrow.columns import coalesce_batches
from penstock.arrow.pages import decode_pages
from penstock.checkpoint.folder import Checkpoint
from penstock.driver.compile import CompiledRegion, PartialSchema
from penstock.driver.engine import Bounds, Divided, EpochOrders, Scan, SourceFrames, shown_columns
from penstock.errors import DeclarationError, raised, without_trace
from penstock.flow import plan as p
from penstock.operators.base import PANE, Partials, parts_schema, position_text
from penstock.progress.lateness import Base, ChunkId
from penstock.progress.source_state import SourceState
from penstock.protocol.commands import Command
from penstock.rows.rows import with_order
from penstock.sinks.base import Stager
from penstock.spark.audit import step_twice
from penstock.spark.columns import arrow_schema, empty_frame, named, spark_schema, to_utc
from penstock.spark.dividing import LEAST_ROWS, SplitStages
from penstock.spark.exchange import fits_pages, in_pages
from penstock.spark.failures import plain
from penstock.spark.internals.arrow_rows import collected, map_in_arrow
from penstock.spark.internals.java_columns import grouped_sql
from penstock.spark.internals.plans import as_rdd, never_without_rows, renamed, select_sql
from penstock.spark.internals.shuffle import to_partitions
from penstock.spark.job_descriptions import JobDescriptions
from penstock.spark.logs import again, input_of
from penstock.spark.lookups import Looking, beside
from penstock.spark.routed import hash_sql, routing_of, routing_sql
from penstock.spark.sources.failing_record import failing_record
from penstock.spark.sources.file_times import JudgedFile
from penstock.spark.sources.kept_input import KeptInput
from penstock.spark.sources.reader import Reader
from penstock.spark.sources.readers import reader_of
from penstock.spark.sources.row_times import RowTimes, counts_of
from penstock.spark.sources.slices import Slices
from penstock.spark.task import BatchFunction, staging, task, whole_task
from penstock.sql_text.schema import quoted
from penstock.state.files import resolve
from penstock.types import HIDDEN, MASK, OFFSET, ORDER, PART_BITS, SUB, TIME
from penstock.worker.audit import map_twice
from penstock.worker.batches import map_batch
from penstock.worker.run import Assignment
from penstock.worker.spec import OUT, PACKED_BITS, Port, RegionSpec, epoch_ports, split_stage

Assign = Callable[[CompiledRegion, EpochOrders], Assignment]
_BACKENDS: Final = count()
_TOKENS: Final = spark_schema(pa.schema([("token", pa.binary())]))
_NAMED_FILES: Final = 10_000
"""Of so many files tasks know the names, for messages."""
PAGED_ROWS: Final = 1 << 19
"""From so many records of an epoch on, its rows are shuffled in pages."""
FEW_ROWS, FEW_FILES, FEW_BYTES = 5_000, 16, 1 << 20
"""No more records, files and bytes of files than these are read by one task, where another stage would cost more than they do."""
FEW_WORKERS, QUICK_MS = 4, 500
"""So many workers, at most, are run by that task, one after the other, if the epoch before took no longer: a user's function that takes long (it asks a
service) must go on at several workers at once, and so must state that moves.
"""


class SparkBackend:
    """The input of one epoch and what runs it.

    Args:
        spark: The query's session.
        slices: The epoch's input.
        epoch: Its number.
        checkpoint: To see whether there are commands at all.
        log: Folder of Spark's log in the checkpoint.
        assign: Makes a region's assignment.
        alone: Sources that go straight to a region, as `sources_alone` gives them.
        kept: What is kept of the files that the epoch reads.
        label: The flow in the descriptions of jobs; empty: they have none.
        twice: Whether users' functions over batches are computed twice.
        last_ms: What the epoch before took; 0: that is not known.
    """

    def __init__(
        self,
        spark: SparkSession,
        slices: Slices,
        epoch: int,
        checkpoint: Checkpoint,
        log: str,
        assign: Assign,
        alone: Mapping[str, CompiledRegion],
        kept: KeptInput,
        *,
        label: str = "",
        twice: bool = False,
        last_ms: int = 0,
    ) -> None:
        self._jobs = JobDescriptions(spark.sparkContext, label, f"epoch {epoch}")
        self._spark = spark
        self._slices = slices
        self._epoch = epoch
        self._checkpoint = checkpoint
        self._log = log
        self._assign = assign
        self._alone = alone
        self._kept_input = kept
        self._twice, self._quick = twice, 0 < last_ms <= QUICK_MS
        # Not by the epoch: a failed one may have left counts of what is another file now.
        self._counted_as = f"{next(_BACKENDS)} "
        self._readers: dict[str, Reader] = {}
        self._malformed: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._few, self._few_of_driver = set[str](), set[str]()
        self._named: dict[int, dict[int, str]] = {}
        self._kept: list[DataFrame] = []
        # By the plan's step, which shares its inputs, what took its place.
        self._met: dict[int, p.StepNode] = {}
        self._looking = Looking()
        counts = counts_of(spark.sparkContext)
        self._stages = SplitStages(counts, self._counted_as, routing_sql, lambda stage, rows: port_frame(stage, 0, rows))
        self._from_region: dict[
            int, tuple[DataFrame, str]
        ] = {}  # by id, with the region; holding the frame keeps its id its own

    def control(self, known: Sequence[str]) -> list[tuple[str, Command]]:
        # The stream of the control log brings the epoch about; its rows are read here, as a job would take longer than the rest.
        new = sorted(set(self._checkpoint.control_names()) - set(known))
        return [(name, self._checkpoint.read_command(name)) for name in new]

    def input(self) -> str:
        return input_of(self._checkpoint, self._log, self._epoch)

    def describe(self, *what: str) -> None:
        self._jobs.begin(*what)

    def scan(self, source: p.SourceNode, ordinal: int, state: SourceState, bounds: Bounds | None = None) -> Scan:
        region = self._alone.get(source.name)

        def leave_times(rows: int, file: str) -> bool:
            # Tasks can read the store in which they keep their state; others perhaps only Spark can.
            if region is None or rows < PAGED_ROWS or resolve(file)[0].type_name != self._checkpoint.fs.type_name:
                return False
            return fits_pages(self._slices.session, region.spec.in_schema)

        made = reader_of(source)(self._slices, source, ordinal, self._epoch, self._kept_input, leave_times, bounds)
        self._readers[source.name] = made
        found = made.scan(state)
        self._malformed[source.name] = found.malformed
        told = [*state.names, *found.names][-_NAMED_FILES:]
        if told and source.position is None:
            end = state.files + len(found.names)
            self._named[ordinal] = dict(enumerate(told, end - len(told)))
        self._rows[source.name] = rows = found.rows or sum(chunk.rows for chunk in found.chunks)
        if 0 < rows <= FEW_ROWS and 0 < len(found.sizes) <= FEW_FILES and sum(found.sizes) <= FEW_BYTES:
            self._few.add(source.name)
        if self._slices.few(ordinal + 1) is not None:
            self._few_of_driver.add(source.name)
        return found

    def read_again(self) -> str:
        return again(self._checkpoint, self._log, self._epoch)

    def keep_input(self) -> None:
        self._kept_input.keep()

    def input_kept(self) -> None:
        self._kept_input.wait()

    def check_input(self) -> None:
        self._kept_input.check()

    def source(self, source: p.SourceNode, ordinal: int, candidate_chunks: dict[ChunkId, Base]) -> SourceFrames:
        del ordinal
        return self._readers[source.name].frames(candidate_chunks, malformed=self._malformed[source.name] > 0)

    def failing_record(self, node: p.StepNode, text: str) -> str:
        """Where the record is from that a step failed on, for a person; empty: that was not found."""

        def rows(source: p.SourceNode) -> DataFrame | None:
            reader = self._readers[source.name]
            return reader.frames({}, malformed=self._malformed[source.name] > 0).on_time if reader.steady else None

        def met(step: p.StepNode, inputs: Sequence[DataFrame]) -> DataFrame:
            return apply_step(self._met.get(id(step.inputs), step), inputs)

        found = failing_record(node, text, rows, met)
        return "" if found is None else position_text(list(self._readers), self._named, *found)

    def late(self, source: p.SourceNode) -> int:
        left = self._readers[source.name].left
        if not left:
            return 0
        counted = counts_of(self._spark.sparkContext).value
        name = self._counted_as + source.name
        # Nobody counts a file none of whose rows came to Python.
        found = {n: counted.pop((name, n), None) for n in left}
        return sum(JudgedFile(*left[n], source.lateness_us).finish() if late is None else late for n, late in found.items())

    def step(self, node: p.StepNode, inputs: Sequence[DataFrame]) -> DataFrame:
        if node.step.refresh is not None:
            self._met[id(node.inputs)] = node
        if len(node.inputs) > 1:
            inputs = [self._cut(i) for i in inputs]
        if self._twice and node.step.frame_function() is not None:
            what, inputs = node.step.describe(), [self.keep(i) for i in inputs]
            place = partial(position_text, [*self._readers], self._named)
            frame = self.keep(step_twice(what, lambda rows: apply_step(node, [rows]), inputs[0], place))
        else:
            mapped = partial(map_twice, [*self._readers], self._named) if self._twice else map_batch
            frame = apply_step(node, inputs, mapped)
            self._looking.follows(frame, *inputs, looks=node.sql is not None and node.sql.beside is not None)
        of = [self._from_region[id(i)][1] for i in inputs if id(i) in self._from_region]
        return self._mark(frame, " and ".join(of)) if of else frame

    def empty(self, node: p.Node) -> DataFrame:
        return empty_frame(self._spark, with_order(node.schema))

    def split(
        self, compiled: CompiledRegion, step: int, frame: DataFrame, work: EpochOrders
    ) -> tuple[DataFrame, DataFrame | None]:
        node = compiled.region.inputs[compiled.feeds[compiled.spec.steps[step].inputs[0][1]]]
        if self._most_rows(node) < LEAST_ROWS:
            return frame, None
        # What users' functions and regions' tasks give is made once.
        keep = (lambda rows: rows) if p.by_sql(node) else self.keep
        stage, strategy = split_stage(compiled.spec, step), compiled.region.distribute
        with self._jobs.during(f"region {compiled.spec.name}"):
            whole, parts = self._stages.split(stage, strategy, frame, work, keep)
            self._looking.follows(whole, frame)
        return (self._mark(whole, self._from_region[id(frame)][1]) if id(frame) in self._from_region else whole), parts

    def divided(self, compiled: CompiledRegion) -> Mapping[int, Divided]:
        return self._stages.divided(compiled.spec.name)

    def _most_rows(self, *nodes: p.Node) -> int:
        """So many records of sources, at most, came to nodes in this epoch."""
        return sum(self._rows[source.name] for source in p.upstream_of(p.SourceNode, *nodes))

    def region(self, compiled: CompiledRegion, inputs: Sequence[DataFrame | None], work: EpochOrders) -> DataFrame:
        parts = parts_schema(compiled.spec.keys)
        spec, frames = epoch_ports(
            self._packed(compiled), inputs, lambda: empty_frame(self._spark, parts), releases=work.releases
        )
        if few := self._few_rows(compiled):  # so Spark need not shuffle them to compute partial results
            frames = [frame.coalesce(1) for frame in frames]
        elif len(spec.ports) > 1:
            frames = [self._cut(i) for i in frames]
        times = self._row_times(compiled, spec)
        without = None if times is None else times.column
        ports = [port_frame(spec, i, frame, without) for i, frame in enumerate(frames)]
        whole = ports[0]
        for other in ports[1:]:
            whole = whole.unionByName(other)
        if spec.keys.names:
            whole = self._looking.planned(whole, *inputs)
        run: Callable[[Assignment], BatchFunction] = task
        if not spec.keys.names:
            shuffled, read = self._stages.shared(
                spec, compiled.region.distribute, never_without_rows(self._looking.planned(frames[0], *inputs)), work
            )
            run = partial(task, read=read)
        elif times is not None or self._in_pages(compiled, spec):  # what runs in Python is left in by Spark, rows or not
            shuffled = in_pages(whole, routing_of(spec, work.routing), work.workers, times)
            run = partial(task, read=partial(decode_pages, schema=spec.in_schema))
        elif few and work.workers <= (FEW_WORKERS if self._quick and not work.moves else 1):
            shuffled, run = never_without_rows(whole).coalesce(1), partial(whole_task, worker_of=routing_of(spec, work.routing))
        else:
            to = F.expr(routing_sql(work.routing, hash_sql(spec)))
            shuffled = to_partitions(never_without_rows(whole), work.workers, to)
        assignment = replace(self._assign(compiled, work), spec=replace(spec, files=self._named))
        return self._mark(map_in_arrow(shuffled, run(assignment), spark_schema(spec.out_schema)), spec.name)

    def _row_times(self, compiled: CompiledRegion, spec: RegionSpec) -> RowTimes | None:
        """What adds the event times to a region's rows, if that is left to its tasks."""
        source = next((name for name, region in self._alone.items() if region is compiled and self._readers[name].left), None)
        if source is None:
            return None
        (port,) = spec.ports
        timed_by = str(dict(port.known)[TIME])
        return RowTimes(
            self._readers[source].left,
            self._readers[source].lateness_us,
            self._counted_as + source,
            counts_of(self._spark.sparkContext),
            [name for name in spec.in_schema.names if name != timed_by].index(OFFSET),
            0 if port.packed is None else PACKED_BITS,
            spec.in_schema.names.index(timed_by),
        )

    def _few_rows(self, compiled: CompiledRegion) -> bool:
        """Whether one task reads all that comes to a region: then a shuffle, and the stage that it ends, would only cost time.

        Not what other regions make, whose tasks must be as many as their workers, nor what users' functions make of several files: they may take long.
        """
        inputs = [compiled.region.inputs[feed] for feed in compiled.feeds]
        if p.upstream_of(p.RegionOutput, *inputs):
            return False
        few = self._few_of_driver | (self._few if all(map(p.by_sql, inputs)) else set())
        return few.issuperset(source.name for source in p.upstream_of(p.SourceNode, *inputs))

    def _in_pages(self, compiled: CompiledRegion, spec: RegionSpec) -> bool:
        """Whether rows go to the workers in pages in this epoch: to cut them costs a visit to Python, which pays for many."""
        if any(by_sql(spec, i) for i in range(len(spec.ports))):
            return False
        rows = self._most_rows(*(compiled.region.inputs[feed] for feed in compiled.feeds))
        return rows >= PAGED_ROWS and fits_pages(self._slices.session, spec.in_schema)

    def _packed(self, compiled: CompiledRegion) -> RegionSpec:
        """The region, with the tests of its patterns sent in offsets where these leave room in this epoch: each column takes time to send."""
        ports = []
        for port, feed in zip(compiled.spec.ports, compiled.feeds, strict=True):
            node = compiled.region.inputs[feed]
            sources = p.upstream_of(p.SourceNode, node)
            few = p.by_sql(node) and all(self._readers[source.name].bits_left() >= PACKED_BITS for source in sources)
            bytes_ = [field.name for field in port.schema if field.name.startswith(MASK) and field.type == pa.int8()]
            ports.append(replace(port, packed=bytes_[0] if few and bytes_ else None))
        return replace(compiled.spec, ports=tuple(ports))

    def _mark(self, frame: DataFrame, region: str) -> DataFrame:
        self._from_region[id(frame)] = frame, region
        return frame

    def _cut(self, frame: DataFrame) -> DataFrame:
        """Run a region's tasks in a stage of their own: in a union a task's number would not be its worker's."""
        if id(frame) not in self._from_region:
            return frame
        with self._jobs.during(f"region {self._from_region[id(frame)][1]}"):
            return self._looking.planned(frame).localCheckpoint(eager=True)

    def part(self, frame: DataFrame, compiled: CompiledRegion, out: int) -> DataFrame:
        if len(compiled.spec.outs) == 1:
            return frame
        prefix = f"{out}."
        columns = [named(n).alias(n[len(prefix) :]) for n in frame.columns if n.startswith(prefix)]
        return self._mark(frame.where(named(OUT) == out).select(*columns), compiled.spec.name)

    def keep(self, frame: DataFrame) -> DataFrame:
        # Spark computes kept frames anew that read files of a folder into which the same application writes.
        kept = as_rdd(self._looking.planned(frame)).persist()
        self._kept.append(kept)
        if id(frame) in self._from_region:
            self._mark(kept, self._from_region[id(frame)][1])
        return kept

    def force(self, frame: DataFrame) -> None:
        self._looking.planned(frame).write.format("noop").mode("append").save()

    def collect(self, frame: DataFrame, hidden: Sequence[str] = ()) -> Iterable[pa.RecordBatch]:
        names = frame.columns
        shown = shown_columns(names, hidden)
        rows = frame if shown == names else select_sql(frame, [*map(quoted, shown)])
        return [to_utc(b) for b in collected(self._looking.planned(rows, frame)) if b.num_rows]

    def stage(self, frame: DataFrame, stager: Stager, hidden: Sequence[str] = ()) -> Iterable[bytes]:
        names = shown_columns(frame.columns, hidden)
        plain = select_sql(frame, [f"{quoted(n)} as c{i}" for i, n in enumerate(names)])  # mapInArrow does not quote names
        tokens = map_in_arrow(
            self._looking.planned(plain, frame), staging(stager, names), _TOKENS, [f"c{i}" for i in range(len(names))]
        )
        return [token for batch in collected(tokens) for token in batch.column(0).to_pylist()]  # type: ignore[misc]  # none is null

    def done(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        for reader in self._readers.values():
            reader.done()


def apply_step(node: p.StepNode, inputs: Sequence[DataFrame], mapped: Callable[..., pa.RecordBatch] = map_batch) -> DataFrame:
    """A stateless step; hidden columns go along. `mapped`: runs users' functions over batches."""
    frame, step = inputs[0], node.step
    for other in inputs[1:]:
        frame = frame.unionByName(other)
    if (sql := node.sql) is not None:
        if sql.beside is not None:
            frame = beside(frame, sql.beside, node.inputs[0].schema)
        if sql.where:
            frame = frame.where(sql.where)
        if sql.columns is not None:
            frame = select_sql(frame, [*(f"{expression} as {quoted(name)}" for name, expression in sql.columns), *ORDER])
        return frame.withColumn(SUB, F.expr(sql.sub)) if sql.sub else frame
    if (fn := step.batch_function()) is not None:
        what, schema, names = step.describe(), node.schema, frame.columns

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in coalesce_batches(batches):
                yield mapped(what, fn, to_utc(batch).rename_columns(names), schema)

        plain = [f"c{i}" for i in range(len(names))]  # mapInArrow does not quote names
        return map_in_arrow(renamed(frame, plain), run, spark_schema(with_order(schema)), plain)
    transform = step.frame_function()
    assert transform is not None
    out: DataFrame = transform(frame)
    if not hasattr(out, "columns"):
        raise DeclarationError(f"{step.describe()} gave {type(out).__name__}; it must give a DataFrame.")
    missing = [n for n in ORDER if n not in out.columns]
    if missing:
        raise DeclarationError(
            f"{step.describe()} lost the column {missing[0]}; it must keep the columns that begin with {HIDDEN}."
        )
    return out


def port_frame(spec: RegionSpec, index: int, frame: DataFrame, without: int | None = None) -> DataFrame:
    """A port's rows in the columns of the task's input, named by place: ``mapInArrow`` does not quote names.

    Args:
        spec: The region.
        index: Which of its ports.
        frame: The rows.
        without: The place of a column of the only port to leave out.
    """
    port = spec.ports[index]
    sent = [quoted(n) for n in (*port.own.names, *port.sent)]
    if port.packed is not None:
        byte = f"{(1 << PACKED_BITS) - 1} & {quoted(port.packed)}"
        sent[len(port.own) + port.sent.index(OFFSET)] = f"(shiftleft({OFFSET}, {PACKED_BITS}) + ({byte}))"
    if port.partial_of is not None and by_sql(spec, index):
        step = spec.steps[port.partial_of]
        partials = step.operator.partials(step.in_schemas[0])
        assert partials is not None
        if not spec.timed:  # it says in which epoch a row came, which must not count
            frame = frame.withColumn(TIME, F.lit(0).cast("long"))
        frame = partial_frame(partials, frame, spec.keys.names)
        sent = [quoted(n) for n in port.schema.names]
    if len(spec.ports) == 1:
        sent = [sql for i, sql in enumerate(sent) if i != without]
        return select_sql(frame, [f"{sql} as c{i}" for i, sql in enumerate(sent)])
    columns = [f"{index} as c0"]
    for i, field in enumerate(spark_schema(spec.in_schema).fields[1:], 1):
        mine = field.name.startswith(f"{index}.")
        columns.append(f"cast({sent.pop(0) if mine else 'null'} as {field.dataType.simpleString()}) as c{i}")
    return select_sql(frame, columns)


def by_sql(spec: RegionSpec, port: int) -> bool:
    """Whether what comes by a port are partial results that Spark's SQL has computed."""
    of = spec.ports[port].partial_of
    return of is not None and spec.steps[of].parts != port


def partial_frame(partials: Partials, frame: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Partial results per key (and pane), computed by the JVM before the shuffle."""
    groups = [*map(quoted, keys), *([f"{partials.pane} as {PANE}"] if partials.pane else [])]
    return grouped_sql(frame, groups, [f"{sql} as {HIDDEN}a{i}" for i, sql in enumerate(partials.columns)])


def partial_schema(spark: SparkSession) -> PartialSchema:
    """Gives the columns of a region's partial results, as `compile_flow` asks for them."""

    def give(region: p.Region, partials: Partials, schema: pa.Schema) -> pa.Schema | None:
        frame = partial_frame(partials, empty_frame(spark, with_order(schema)), region.keys.names)
        renamed = frame.toDF(*(c.replace(HIDDEN, "ps_partial_") for c in frame.columns))
        found = arrow_schema(renamed.schema)
        return pa.schema([pa.field(n, f.type) for n, f in zip(frame.columns, found, strict=True)])

    return give


def only_partition(plan: p.Plan) -> Callable[[p.SourceNode], int | None]:
    """Gives the partition of all rows of a source, as `compile_flow` asks for it: without ``position=`` there is one."""
    return lambda source: None if source.position else plan.sources.index(source) << PART_BITS


def schema_of(spark: SparkSession) -> Callable[[p.Node, dict[int, pa.Schema]], pa.Schema]:
    """Exact columns of a node, as Spark's analyser sees them."""

    def give(node: p.Node, before: dict[int, pa.Schema]) -> pa.Schema:
        if isinstance(node, (p.SourceNode, p.AsideNode)):
            return node.schema
        assert isinstance(node, p.StepNode)  # the compiler knows the others
        inputs = [empty_frame(spark, with_order(before[id(i)])) for i in node.inputs]
        try:
            return arrow_schema(apply_step(node, inputs).schema)
        except DeclarationError:
            raise
        except Exception as error:  # noqa: BLE001  (whatever Spark's analyser raises, or the user's function)
            if node.step.frame_function() is not None and not isinstance(error, PySparkException):
                raise without_trace(
                    DeclarationError(f"{node.step.describe()} failed: {raised(error)}; fix the function."), error
                ) from None
            first = plain(str(error).splitlines()[0]) if str(error) else type(error).__name__
            told = DeclarationError(f"Spark cannot run the step {node.step.describe()}: {first.rstrip('.')}; correct it.")
            raise without_trace(told, error) from None

    return give


__all__ = ["Port", "SparkBackend", "partial_schema", "schema_of"]
