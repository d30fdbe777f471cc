"""What Spark shows of an error: one line for a failure that a caller can handle, frames for a bug."""

import os
from collections.abc import Iterator
from io import BytesIO

import pytest
from pyspark.util import handle_worker_exception

from stratalog.errors import DataLoss, NotInEnvironment
from stratalog.spark.failures import one_line


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the environment of a worker of Spark's."""
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    yield
    os.environ.pop("SPARK_HIDE_TRACEBACK", None)


@one_line()
def fail(error: Exception) -> None:
    try:
        raise OSError("the cause")
    except OSError as cause:
        raise error from cause


def reported(error: Exception) -> str:
    """Return what a worker of Spark's writes to the JVM about an error."""
    out = BytesIO()
    try:
        fail(error)
    except Exception as raised:  # noqa: BLE001 - as the worker does
        handle_worker_exception(raised, out)
    return out.getvalue()[8:].decode()


@pytest.mark.usefixtures("worker")
def test_a_failure_is_one_line_without_causes() -> None:
    assert reported(DataLoss("offsets are gone")) == "stratalog.errors.DataLoss: offsets are gone\n"


@pytest.mark.usefixtures("worker")
def test_a_bug_keeps_its_frames() -> None:
    found = reported(AssertionError("a bug"))
    assert "Traceback" in found
    assert "the cause" in found


@pytest.mark.usefixtures("worker")
def test_a_missing_variable_says_which_environment_counts() -> None:
    found = reported(NotInEnvironment("the environment has no variable SECRET"))
    assert found == (
        "stratalog.errors.NotInEnvironment: the environment has no variable SECRET; Spark's workers have the "
        "environment of the session's start: set it before the session begins\n"
    )


def test_another_process_is_left_as_it_is() -> None:
    with pytest.raises(DataLoss):
        fail(DataLoss("offsets are gone"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
