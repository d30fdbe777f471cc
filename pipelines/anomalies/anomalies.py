"""Flag clients and paths out of the ordinary: `python pipelines/anomalies/anomalies.py --help`.

In: a command line. Out: this process replaced by Spark's, with the import path of its workers. Never here: the program
itself (`stream.py`).

It is a separate program, because Spark's declarative pipelines do not support `transformWithState` (4.2: it reads a
frame's columns while the pipeline is only being described).
"""

import os
import sys
from pathlib import Path
from shlex import join

from command import parse_arguments

from stratalog.cli.pipeline import spark_environment
from stratalog.errors import UserError

HERE = Path(__file__).resolve().parent
MODULES = (HERE, HERE.parent / "access_log")


def main(arguments: list[str]) -> int:
    """Replace this process by Spark's; return only an error, as an exit status."""
    options = parse_arguments(arguments)
    try:
        environment = spark_environment(options.state, master=options.master, modules=MODULES)
    except UserError as error:
        sys.stderr.write(f"anomalies.py: {error}\n")
        return 2
    del environment["SPARK_REMOTE"]  # a plain session is enough
    conf = ["spark.driver.host=127.0.0.1", "spark.ui.enabled=false", "spark.log.level=ERROR"]
    conf += ["spark.ui.showConsoleProgress=false"]
    words = ["--master", options.master, "--driver-memory", options.memory]
    words += [word for one in conf for word in ("--conf", one)]
    environment["PYSPARK_SUBMIT_ARGS"] = join([*words, "pyspark-shell"])
    command = [sys.executable, str(HERE / "stream.py"), *arguments]
    return os.execve(sys.executable, command, environment)  # noqa: S606 - this very Python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
