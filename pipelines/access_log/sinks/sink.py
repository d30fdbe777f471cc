"""What every sink of `./run --sink` is.

In: nothing. Out: the values that the job and a sink exchange. Never here: any one sink.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SinkPlace:
    """What a sink is opened with: `root`, a directory of the run's for all that it keeps (not made yet), or the user's
    own `url` (`--sink-url`): then it starts nothing and removes nothing.
    """

    root: Path
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """A sink that takes rows: Spark's `format` with `options`, for `writeStream` and `dp.create_sink` alike.

    `url` is where it is, for people. `spark_conf` is what Spark must know before its JVM starts (jars, extensions).
    `status_counts()` says, once the pipeline has ended, how many rows of each HTTP status are there.
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
