"""The interface of the sinks of `./run --sink`.

In: nothing. Out: the values that the job and a sink exchange. Never here: any one sink.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """The place for a sink: `root`, a directory of the run for its files (not created yet), or the user's own `url`
    (`--sink-url`), where the sink starts and removes nothing.
    """

    root: Path
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink that takes rows: Spark's `format` with `options`, for `writeStream` and `dp.create_sink` alike.

    `url` is its address, for people. `spark_conf` has the settings that Spark needs before its JVM starts (jars,
    extensions). After the pipeline's end, `status_counts()` returns the number of rows by HTTP status.
    """

    format: str
    options: Mapping[str, str]
    url: str
    status_counts: Callable[[], dict[int, int]]
    spark_conf: Mapping[str, str] = field(default_factory=dict)


OpenSink = Callable[[SinkPlace], AbstractContextManager[Sink]]
"""Opens a sink. The processes that it started end with the block. Raises UserError if the sink is not available, or if
the user's own sink holds rows already.
"""
