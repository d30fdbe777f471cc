"""Failures as Spark's users see them: the one line of the error, without frames and causes.

In: an error of the package, at the outermost call that Spark makes. Out: the same error, which Spark's worker reports
alone; and a pattern that finds it in what Spark prints. A bug (an AssertionError) keeps its frames.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stratalog.errors import Error, NotInEnvironment

__all__ = ["OURS", "one_line"]

OURS: Final = re.compile(r"\bstratalog\.errors\.\w+: (.+)")
"""An error of the package in a line that Spark prints; in front of it Spark names its own."""
_SESSION: Final = (
    "Spark's workers have the environment of the session's start: set it before the session begins"
)


@contextmanager
def one_line() -> Iterator[None]:
    """Let a worker report an error of the package in one line."""
    try:
        yield
    except Error as error:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            # What spark.sql.execution.pyspark.udf.hideTraceback.enabled sets. A worker ends with its error, so no
            # other task is without its traceback.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        if isinstance(error, NotInEnvironment):
            raise NotInEnvironment(f"{error}; {_SESSION}") from None
        raise
