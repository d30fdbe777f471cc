"""The Containerfile and the compose file at work: images built, services started, with real MinIO, Prometheus, Spark.

Method: no container engine, but its parts: BuildKit's parser, compose's loader, overlays, name spaces. So each command
of the two files runs as it stands. Records go in where the file publishes a port, and must come out everywhere.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pyarrow.parquet import read_table
from tests.compat.composed import Composed, loaded
from tests.compat.images import Builder, Image, parsed
from tests.compat.object_servers import MINIO
from tests.compat.test_prometheus import program
from tests.compat.tools import cannot_be_had, go_program
from tests.integration.waiting import wait_for

from stratalog.cli.pipeline import table_files, table_rows

TOP = Path(__file__).parents[2]
PLACE = TOP / "container"
MEMORY = Path("/dev/shm")  # an overlay's layers may not lie in another of its layers, which is `/`
BYTES_MIN = 6 << 30
LOG = TOP / "pipelines" / "access_log" / "apache_access.log"
LINES = 10_000
SPARK_TIMEOUT_S = 300
BASE = "python:3.12-slim"
UNPRIVILEGED = 65534

pytestmark = [pytest.mark.big, pytest.mark.serial, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    if shutil.disk_usage(MEMORY).free < BYTES_MIN:
        cannot_be_had("the images", f"they need {BYTES_MIN >> 30} GiB in {MEMORY}")
    made = Path(tempfile.mkdtemp(prefix="stratalog-images-", dir=MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    return loaded(PLACE / "compose.yaml")


@pytest.fixture(scope="module")
def builder(place: Path) -> Builder:
    return Builder(PLACE / "Containerfile", TOP, place)


def others(builder: Builder, place: Path) -> dict[str, Image]:
    """Images of other makers: their programs, which this machine has, with their entry points and users."""
    layers = builder.image(BASE).layers
    layer = place / "prometheus"
    # The working directory of Prometheus' image, and the place where Debian's build writes.
    for data in ("prometheus", "var/lib/prometheus"):
        (layer / data).mkdir(parents=True)
        os.chown(layer / data, UNPRIVILEGED, UNPRIVILEGED)
    return {
        "minio/minio": Image(layers, entrypoint=(str(go_program("minio", MINIO)),)),
        "prom/prometheus": Image(
            (layer, *layers),
            user=f"{UNPRIVILEGED}:{UNPRIVILEGED}",
            directory="/prometheus",
            entrypoint=(program("prometheus"),),
        ),
    }


@pytest.fixture(scope="module")
def composed(model: dict[str, Any], builder: Builder, place: Path) -> Iterator[Composed]:
    images = others(builder, place)
    for one in model["services"].values():
        if "build" in one:
            build = one["build"]
            assert Path(build["context"], build["dockerfile"]) == PLACE / "Containerfile"
            images[one["image"]] = builder.image(build["target"])
    with Composed(model, images, place) as system:
        system.up("console", "prometheus")
        yield system


def strata(composed: Composed, *words: str) -> str:
    """Run our command where the ports are published, with its own default address."""
    return composed.on_host(sys.executable, "-m", "stratalog.cli.main", *words)


def got(composed: Composed, url: str) -> Any:
    script = (
        "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"
    )
    return json.loads(composed.on_host(sys.executable, "-c", script, url))


def sampled(composed: Composed, query: str) -> list[str]:
    """The values that Prometheus has for a query now."""
    url = f"http://127.0.0.1:9090/api/v1/query?query={quote(query)}"
    return [one["value"][1] for one in got(composed, url)["data"]["result"]]


def eventually(composed: Composed, there: Callable[[], object], what: str) -> None:
    """Wait as long as two rounds of the tier or of scrapes may take."""
    try:
        wait_for(lambda: _true(there), what, 90)
    except AssertionError as error:
        said = "\n".join(composed.said(name) for name in ("broker", "prometheus", "minio"))
        raise AssertionError(f"{error}: {said}") from error


def _true(there: Callable[[], object]) -> bool:
    try:
        return bool(there())
    except AssertionError:  # not served yet
        return False


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("FROM base AS broker", "FROM base AS", "three arguments"),
        ("WORKDIR /data", "WORKDR /data", "unknown instruction"),
        ("source=/wheels", "sourced=/wheels", "unexpected key"),
        ("--start-period", "--start", "unknown flag"),
    ],
)
def test_a_wrong_containerfile_is_refused(old: str, new: str, reason: str) -> None:
    text = (PLACE / "Containerfile").read_text()
    assert old in text
    with pytest.raises(ValueError, match=reason):
        parsed(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("read_only:", "readonly:", "readonly"),
        ("127.0.0.1:9092:9092", "127.0.0.1:9092:broker", "containerPort"),
        ("service_healthy", "healthy", "condition"),
    ],
)
def test_a_wrong_compose_file_is_refused(old: str, new: str, reason: str, tmp_path: Path) -> None:
    text = (PLACE / "compose.yaml").read_text()
    assert old in text
    (tmp_path / "compose.yaml").write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=reason):
        loaded(tmp_path / "compose.yaml")


def test_the_image_alone_serves_and_is_healthy(builder: Builder, place: Path) -> None:
    """`docker run --read-only --tmpfs /tmp -v data:/data stratalog`: the image's own command and health check."""
    service = {
        "image": "stratalog",
        "read_only": True,
        "cap_drop": ["ALL"],
        "tmpfs": ["/tmp"],
        "volumes": [{"source": "data", "target": "/data"}],
        "ports": [
            {"host_ip": "127.0.0.1", "published": str(port), "target": port}
            for port in builder.image("broker").ports
        ],
    }
    alone = place / "alone"
    alone.mkdir()
    model = {"services": {"alone": service}, "volumes": {"data": {}}}
    with Composed(model, {"stratalog": builder.image("broker")}, alone) as system:
        system.up("alone")
        system.wait_until_healthy("alone")
        assert system.executed("alone", "id", "-u").stdout.strip() == "10001"
        assert "Read-only" in system.executed("alone", "touch", "/usr/local/x").stderr
        assert system.executed("alone", "sh", "-c", "command -v cc gcc cargo").returncode
        strata(system, "topic", "create", "one")
        assert "one" in strata(system, "topic", "list")
        said = system.said("alone")
        assert "interpreted code" not in said, "the first stage had no C compiler"
        assert "small requests are not compiled" not in said, "the first stage had no cargo"


def test_records_reach_everything_that_is_composed(composed: Composed, place: Path) -> None:
    small = ("-c", "segment.bytes=1048576", "-c", "remote.storage.enable=true")
    strata(composed, "topic", "create", "access_log", "--partitions", "1", *small)
    strata(composed, "produce", "access_log", str(LOG))
    wanted = strata(composed, "consume", "access_log", "--from", "beginning", "--until-end")
    assert len(wanted.splitlines()) == LINES

    console = "http://127.0.0.1:8080"
    eventually(
        composed,
        lambda: "access_log" in json.dumps(got(composed, f"{console}/tier.json")),
        "a segment in MinIO, as the console sees it",
    )
    assert list((place / "volume-bucket" / "history").rglob("*.seg")), "MinIO's objects"
    assert got(composed, f"{console}/metrics.json")["monitors"][0]["address"] == "broker:9404"
    eventually(composed, lambda: sampled(composed, "up") == ["1"], "Prometheus' scrape")
    records = 'stratalog_topic_messages_in_total{job="stratalog",topic="access_log"}'
    eventually(composed, lambda: sampled(composed, records) == [str(LINES)], "records counted")

    composed.up("spark")
    assert composed.ended("spark", SPARK_TIMEOUT_S) == 0, composed.said("spark")
    state = place / "spark.writes" / "data" / ".state" / "access_log"
    assert table_rows(state)["raw"] == LINES
    views = [read_table(file) for file in table_files(state / "warehouse" / "by_origin")]
    origins = {row["origin"]: row["records"] for view in views for row in view.to_pylist()}
    assert (sum(origins.values()), origins["bucket"] > 0) == (LINES, True), origins
