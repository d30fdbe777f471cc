"""Run Spark's own pipeline runner in a process of its own: `python -m stratalog.spark.pipeline_runner SPEC`.

In: a pipeline specification file, Spark's environment (`strata pipeline run` prepares both), standard input as a
lifeline. Out: the runner's output, and its exit status. It has no pipeline logic: Spark runs the pipeline.

Two things differ from `spark-pipelines run`. The Connect server that Spark starts for the run listens on a free port
instead of 15002, so that runs do not collide. And the process ends when its standard input closes. So neither the
process nor its JVM outlives its parent, however the parent dies.
"""

import os
import sys
from pathlib import Path
from threading import Thread  # noqa: TID251 - a Spark process, not a broker's; it waits for one end of file

from pyspark.pipelines.cli import run
from pyspark.sql.connect.client.core import DefaultChannelBuilder
from pyspark.sql.session import SparkSession

__all__ = ["end_with_parent", "main"]


def end_with_parent() -> None:
    """End this process, and so its JVM, once standard input is closed."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _connect_port() -> int:
    """Return the port of this process's Connect server."""
    session = SparkSession._instantiatedSession  # noqa: SLF001 - as Spark itself finds the port in its tests
    assert session is not None, "the server is started before its client"
    service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")  # noqa: SLF001
    return int(getattr(service, "MODULE$").localPort())


def main(arguments: list[str]) -> None:
    """Run one update of the pipeline `SPEC`; with `full`, recompute everything."""
    end_with_parent()
    DefaultChannelBuilder.default_port = staticmethod(_connect_port)  # type: ignore[method-assign]
    run(
        spec_path=Path(arguments[0]),
        full_refresh=[],
        full_refresh_all="full" in arguments[1:],
        refresh=[],
        dry=False,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
