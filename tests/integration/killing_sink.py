"""The Spark sink, whose driver dies at a step of a batch.

In: the sink's options, and which step of which batch kills which process group. Out: the product's sink until then. A
step runs in a task's process or in the driver's own; either kills the driver, its JVM and with them all tasks.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from stratalog.spark.sink import StreamSink, Written
from stratalog.spark.source import StratalogSource
from stratalog.table import exactly_once
from stratalog.table.exactly_once import ExactlyOnce

STEPS = (
    "before finish",
    "after finish",
    "before begin",
    "after begin",
    "after write",
    "before commit",
    "before check_open",
    "after check_open",
    "before decide",
    "after decide",
    "between ends",
    "after end_decided",
    "after note_ended",
    "before abort_others",
    "after commit",
)
_OPTION = "kill"


class KillingSource(StratalogSource):
    """`format("stratalog_killing")`; the option `kill` is `<process group> <batch> <step>`."""

    @classmethod
    def name(cls) -> str:
        return "stratalog_killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        given = dict(self.options)
        group, batch, step = given.pop(_OPTION).split(" ", 2)
        plain = StratalogSource(given).streamWriter(schema, overwrite)
        return KillingSink(plain, Kill(int(group), int(batch), step))


class Kill:
    """The death of a process group at a step of a batch."""

    def __init__(self, group: int, batch: int, step: str) -> None:
        assert step in STEPS, step
        self._group = group
        self._batch = batch
        self._step = step

    def at(self, step: str, batch: int) -> None:
        """Kill the process group, if this is the step."""
        if (step, batch) == (self._step, self._batch):
            os.killpg(self._group, 9)

    @contextmanager
    def armed(self, batch: int) -> Iterator[None]:
        """Kill the process group at the step, if the code below comes to it."""
        when, _, name = self._step.partition(" ")
        if batch != self._batch or not (name == "ends" or hasattr(ExactlyOnce, name)):
            yield
            return
        where: Any = exactly_once if name == "ends" else ExactlyOnce
        attribute = "end" if name == "ends" else name
        real = getattr(where, attribute)

        async def dying(*given: Any, **named: Any) -> Any:
            if when == "before":
                os.killpg(self._group, 9)
            answer = await real(*given, **named)
            os.killpg(self._group, 9)
            return answer

        setattr(where, attribute, dying)
        try:
            yield
        finally:
            setattr(where, attribute, real)


class KillingSink(StreamSink):
    """A stream's sink that is killed."""

    def __init__(self, plain: StreamSink, kill: Kill) -> None:
        super().__init__(plain._options)
        self._kill = kill

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or "-1")
        with self._kill.armed(batch):
            written = super().write(iterator)
        self._kill.at("after write", batch)
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        self._kill.at("before commit", batchId)
        with self._kill.armed(batchId):
            super().commit(messages, batchId)
        self._kill.at("after commit", batchId)


def given(options: Mapping[str, str], group: int, batch: int, step: str) -> dict[str, str]:
    """Return the sink's options with the kill."""
    return {**options, _OPTION: f"{group} {batch} {step}"}
