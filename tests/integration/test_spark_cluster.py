"""A real standalone cluster: a master and two workers whose own Python lacks our packages.

Method: an environment is packed as docs/spark.md says, and Spark's archives bring it to the executors. The bucket is a
real S3 server: its key is in the environment of driver and workers. Afterwards the test
searches all that Spark wrote and showed for the secret: files, logs, event log, checkpoint, and the pages and the API
of its UIs.
"""

import json
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.object_servers import ENVIRONMENT, SECRET, s3_server
from tests.integration.spark_cluster import (
    Cluster,
    bare_python,
    driver_python,
    environment,
    standalone,
)
from tests.integration.test_spark_broker import Driver, produce, until, whole

from stratalog.adapters.object_store import open_store
from stratalog.tier.reading.reader import open_bucket

pytestmark = [pytest.mark.big, pytest.mark.timeout(1800), pytest.mark.xdist_group("spark")]

TOP = Path(__file__).parent.parent.parent
ARCHIVE = "packed.tar.gz"


def command_in_the_docs(begins: str) -> list[str]:
    """Return the words of a command of docs/spark.md."""
    text = (TOP / "docs/spark.md").read_text().replace("\\\n", " ")
    (found,) = [line for line in text.splitlines() if line.startswith(begins)]
    return shlex.split(found)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def packed(place: Path) -> dict[str, str]:
    """Pack the environment as the page does, from this checkout; return the page's configuration for `spark-submit`."""
    for words in (command_in_the_docs("pip install --target"), command_in_the_docs("tar ")):
        local = [str(TOP) + "[arrow]" if word == "stratalog[arrow]" else word for word in words]
        command = [sys.executable, "-m", *local] if local[0] == "pip" else local
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    submit = command_in_the_docs("spark-submit")
    conf = dict(word.split("=", 1) for word in submit if word.startswith("spark.") and "=" in word)
    archive = submit[submit.index("--archives") + 1]
    assert archive.startswith(ARCHIVE + "#")
    return {**conf, "spark.archives": f"{place}/{archive}"}


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[BrokerProcess]:
    with s3_server("minio", place) as store:
        url = store.url("history", create_bucket="true")
        with broker_process(place / "broker", environ=ENVIRONMENT, tier__url=url) as made:
            yield made


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[Cluster]:
    bare = bare_python(place / "bare")
    with standalone(place / "spark", 2, environment(bare, **ENVIRONMENT)) as made:
        yield made


@pytest.fixture(scope="module")
def driver(place: Path, cluster: Cluster, packed: dict[str, str]) -> Iterator[Driver]:
    (place / "events").mkdir()
    conf = {
        **packed,
        "spark.master": cluster.url,
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (place / "events").as_uri(),
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(place / "local"),
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    python = driver_python(place / "venv")
    variables = environment(python, **ENVIRONMENT)
    made = Driver(place / "driver", conf, variables, str(python / "python3"))
    yield made
    made.kill()


def wait_until_tiered(
    broker: BrokerProcess, topic: str, end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    store = open_store(broker.settings["tier.url"])

    def tiered() -> bool:
        found = open_bucket(store).topic(topic)
        manifest = open_bucket(store).manifest(found, 0) if found is not None else None
        return manifest is not None and manifest.tiered_end >= end

    until(tiered, "nothing was archived")


def pages(driver: Driver, cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Return the pages that the UIs of driver and master show."""
    web, application = driver.ask("where")
    rest = f"{web}/api/v1/applications/{application}"
    for url in (
        cluster.web,
        f"{cluster.web}/json/",
        *(f"{web}/{page}/" for page in ("jobs", "stages", "environment", "executors", "SQL")),
        *(f"{rest}/{page}" for page in ("environment", "jobs", "sql", "executors")),
    ):
        with urllib.request.urlopen(url, timeout=60) as answer:
            yield url, answer.read().decode()


def test_bucket_and_broker_are_read_streamed_and_written_on_a_cluster(
    place: Path,
    broker: BrokerProcess,
    driver: Driver,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produce(broker, "wide", 0, 4000, partitions=2)
    wait_until_tiered(broker, "wide", 1000, monkeypatch)
    options = {
        "kafka.bootstrap.servers": broker.address,
        "tier.url": broker.settings["tier.url"],
        "subscribe": "wide",
        "includeOrigin": "true",
        "startingOffsets": "earliest",
    }
    found = driver.ask("batch", options={**options, "minPartitions": "8"})
    for partition in (0, 1):
        whole(found, partition, 0, 4000)
    assert {part["origin"] for part in found} == {"bucket", "broker"}
    where = {"checkpoint": str(place / "checkpoint"), "sink": str(place / "sink"), "wait": True}
    limited = {**options, "maxOffsetsPerTrigger": "5000"}
    driver.ask("stream", options=limited, **where)
    produce(broker, "wide", 4000, 4500, partitions=2)
    driver.ask("stream", options=limited, **where)
    found = driver.ask("read_back", sink=where["sink"])
    for partition in (0, 1):
        whole(found, partition, 0, 4500)
    produce(broker, "copied", 0, 0, partitions=2)
    target = {"kafka.bootstrap.servers": broker.address, "topic": "copied"}
    driver.ask("copy", options=options, sink=target, checkpoint=None)
    place_of = {"kafka.bootstrap.servers": broker.address, "subscribe": "copied"}
    assert [part["records"] for part in driver.ask("batch", options=place_of)] == [4500, 4500]
    # The error for a refused key must not show the key either.
    wrong = {**options, "tier.url": broker.settings["tier.url"].replace("history", "nowhere")}
    assert SECRET not in driver.asked("batch", options=wrong)["error"]

    shown = dict(pages(driver, cluster))
    assert any("history" in text for text in shown.values()), "the pages show options"
    assert not [url for url, text in shown.items() if SECRET in text]
    left = [file for file in place.rglob("*") if file.is_file() and of_spark(place, file)]
    assert not [str(file) for file in left if SECRET.encode() in file.read_bytes()]
    (events,) = (place / "events").glob("*/events_*")
    assert b"history" in events.read_bytes(), "the event log has options"
    assert workers_used(events) >= 2, "both workers must read"
    kernels = list(place.glob("spark/work-*/app-*/*/packed/stratalog/kernels/__pycache__/*.nbc"))
    assert {file.relative_to(place).parts[1] for file in kernels} == {"work-0", "work-1"}


def of_spark(place: Path, file: Path) -> bool:
    """Yield Spark's files: neither the store's and the broker's own, nor the packed Python packages."""
    inside = file.relative_to(place).parts
    others = {"minio", "broker", "packed", ARCHIVE, "venv", "bare"}
    return inside[0] not in others and "packed" not in inside


def workers_used(events: Path) -> int:
    """Return how many executors ended a task."""
    ended = set()
    for line in events.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerTaskEnd":
            ended.add(event["Task Info"]["Executor ID"])
    return len(ended)
