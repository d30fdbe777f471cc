"""The oldest pyspark that we promise, and the newest: a batch, a stream, a sink, a table and `stratalog.read` on each.

Every run has the pinned pyspark. The others come from PyPI, once, beside the environment's other packages:
`./test --all tests/integration/test_spark_versions.py`.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from fetched import fetching
from tests.broker_process import BrokerProcess
from tests.integration.test_spark_broker import (
    Driver,
    both,
    produce,
    pytestmark,
    spark_environment,
    wait_until_tiered,
    whole,
)

OLDEST, NEWEST = "4.2.0", "4.3.0"
TOP = Path(__file__).parents[2]
INSTALL_S = 1800

__all__ = ["pytestmark"]


def packages(version: str) -> Path:
    """Return a directory that holds this pyspark; fetch it if it is missing."""
    with fetching(f"pyspark-{version}") as directory:
        if not directory.is_dir():
            unfinished = directory.with_suffix(".unfinished")
            command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
            command += ["install", "--no-build-isolation", "--upgrade", "--target", str(unfinished)]
            subprocess.run([*command, f"pyspark=={version}"], check=True, timeout=INSTALL_S)
            unfinished.rename(directory)
        return directory


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("versions") / "broker").start()
    yield made
    made.kill()


def test_the_promised_versions_are_those_of_the_tests() -> None:
    project = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
    assert f"pyspark[pipelines]>={OLDEST}" in project["optional-dependencies"]["spark"]
    (limits,) = re.findall(
        r"^\| Spark versions \| (.*) \|$", (TOP / "docs/limits.md").read_text(), re.MULTILINE
    )
    for version in (OLDEST, NEWEST, pyspark.__version__):
        assert version in limits


@pytest.mark.big
@pytest.mark.timeout(INSTALL_S + 600)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_a_batch_a_stream_a_sink_a_table_and_read(
    broker: BrokerProcess, tmp_path: Path, version: str
) -> None:
    name = f"versions-{version}"
    produce(broker, name, 0, 3000)
    produce(broker, f"{name}-copy", 0, 50, configs={})
    wait_until_tiered(broker, name, 1000)
    environment = spark_environment(
        PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(packages(version))
    )
    environment.pop("SPARK_HOME", None)
    options = both(broker, name, startingOffsets="earliest")
    driver = Driver(tmp_path / "driver", environment=environment)
    try:
        assert driver.ask("sql", statements=["SELECT version()"])[0][0].startswith(version)
        whole(driver.ask("batch", options=options), 0, 0, 3000)
        where = {"checkpoint": str(tmp_path / "checkpoint"), "sink": str(tmp_path / "sink")}
        driver.ask("stream", options=options, **where, wait=True)
        whole(driver.ask("read_back", sink=where["sink"]), 0, 0, 3000)
        few = driver.ask("pruned", options={**options, "pushdown": "true"}, where="offset >= 2990")
        whole(few["rows"], 0, 2990, 3000)
        sink = {"kafka.bootstrap.servers": broker.address, "topic": f"{name}-copy"}
        written = {"kafka.bootstrap.servers": broker.address, "subscribe": f"{name}-copy"}
        driver.ask("copy", options=options, sink=sink, checkpoint=None)
        once = {**sink, "deliveryGuarantee": "exactly-once"}
        driver.ask("copy", options=options, sink=once, checkpoint=str(tmp_path / "copied"))
        assert driver.ask("count", options=written) == {"rows": 6050, "keys": 3000}
        named = ", ".join(f"'{key}' '{value}'" for key, value in options.items())
        statements = [
            f"CREATE TABLE kept USING stratalog OPTIONS ({named})",
            "SELECT count(*) FROM kept",
        ]
        assert driver.ask("sql", statements=statements) == [[3000]]
        error = driver.asked("batch", options=both(broker, "nowhere"))["error"]
        assert re.match(r"\[PYTHON_DATA_SOURCE_ERROR\].*: topic nowhere does not exist", error)
    finally:
        driver.kill()
    program = (
        "import pyspark, stratalog\n"
        f"assert pyspark.__version__ == {version!r}\n"
        f"print(stratalog.read({name!r}, tier_url={broker.bucket_url!r}, "
        f"bootstrap_servers={broker.address!r}).read_all().num_rows)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "3000\n"
