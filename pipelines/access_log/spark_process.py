"""Run a program beside this file in a separate Spark process.

In: its name, its arguments, Spark's settings. Out: the JSON that it printed. Never here: sessions; the program starts
its own, and its process ends with the answer.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import Any

from stratalog.cli.pipeline import spark_environment, start_spark
from stratalog.errors import UserError

HERE = Path(__file__).parent
MASTER = "local[2]"
HEAP = "768m"


def ask_spark(
    program: str,
    arguments: Sequence[str],
    directory: Path,
    *,
    java_options: str,
) -> dict[str, Any]:
    """Return the JSON that a program beside this file prints as its last line, in a Spark process with a plain session.

    It runs in `directory`, which also gets its log; `java_options` are passed to the JVM unchanged. Raises UserError
    where it does not answer.
    """
    directory.mkdir(parents=True, exist_ok=True)
    environment = spark_environment(directory, master=MASTER, modules=[HERE])
    del environment["SPARK_REMOTE"]  # a plain session is enough
    conf = {
        "spark.driver.memory": HEAP,
        "spark.driver.extraJavaOptions": f"-XX:+UseParallelGC {java_options}",
        "spark.python.daemon.module": "stratalog.spark.worker_daemon",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(directory / "tmp"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
    }
    words = ["--master", MASTER]
    words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    environment["PYSPARK_SUBMIT_ARGS"] = join([*words, "pyspark-shell"])
    log = directory / f"{Path(program).stem}.log"
    command = [str(HERE / program), *arguments]
    with (
        log.open("w", encoding="utf-8") as stderr,
        start_spark(command, environment, directory, stderr=stderr.fileno()) as process,
    ):
        assert process.stdout is not None
        said = process.stdout.read().strip().splitlines()
    if process.returncode != 0 or not said:
        raise UserError(f"{program} did not answer: {spark_error(log)}")
    answer: dict[str, Any] = json.loads(said[-1])
    return answer


def spark_error(log: Path) -> str:
    """Return the most informative line of a Spark program's log."""
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in said if "Error" in line or "Exception" in line]
    return (telling or said or ["no reason given"])[-1].strip()
