"""Goal: today's code opens the files of earlier releases. Method: each release's archive is unpacked, and a real broker
serves its directory and bucket, once after a clean stop and once after a kill; records, committed offsets, settings and
the bucket are compared with the results of the release itself.

An archive is never made again (`tests/golden/releases/make.py`).
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from tests.broker_process import BrokerProcess, broker_process
from tests.golden.releases.make import (
    GROUP,
    PARTITIONS,
    SETTINGS,
    TIMEOUT_S,
    TOPICS,
    committed,
    produce,
    read_everything,
)
from tests.integration.server_process import strata

from stratalog import read

RELEASES = sorted(Path(__file__).parent.joinpath("releases").glob("*.tar.xz"))
assert RELEASES, "no release left an archive"
TIERED = 120
"""Records of a partition of `history` that lie in the bucket at least: every segment but the active one."""


@pytest.fixture(
    params=[f"{one.name} {end}" for one in RELEASES for end in ("stopped", "killed")], ids=str
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name, end = request.param.split()
    with tarfile.open(RELEASES[0].with_name(name)) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / end


@pytest.fixture
def broker(place: Path) -> Iterator[BrokerProcess]:
    with broker_process(place, **SETTINGS) as started:
        yield started


def test_a_release_s_directory_serves_the_same_records_offsets_and_settings(
    broker: BrokerProcess, place: Path
) -> None:
    expected = json.loads((place / "expected.json").read_text())
    assert read_everything(broker.address, dict.fromkeys(TOPICS, PARTITIONS)) == expected["records"]
    assert committed(broker.address) == expected["committed"]
    admin = AdminClient({"bootstrap.servers": broker.address})
    assert sorted(admin.list_topics(timeout=TIMEOUT_S).topics) == [
        "__consumer_offsets",
        *sorted(TOPICS),
    ]
    (asked,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "plain")]).values()
    assert asked.result(TIMEOUT_S)["max.message.bytes"].value == "900000"
    assert [one.group_id for one in admin.list_consumer_groups().result().valid] == [GROUP]

    # The log continues where the release left it, also after another stop.
    produce(broker.address, "zstd", 9)
    assert broker.stop() == 0
    broker.start()
    after = read_everything(broker.address, dict.fromkeys(TOPICS, PARTITIONS))
    for name, rows in expected["records"].items():
        assert after[name][: len(rows)] == rows
        assert [row[0] for row in after[name][len(rows) :]] == list(range(150, 180))
    verified = strata("tier", "verify", broker.bucket_url)
    assert verified.returncode == 0, verified.stdout


def test_a_release_s_bucket_is_read_without_a_broker(place: Path) -> None:
    expected = json.loads((place / "expected.json").read_text())
    table = read("history", tier_url=(place / "bucket").as_uri()).read_all()
    found = zip(*(table[name].to_pylist() for name in ("partition", "offset", "key")), strict=True)
    rows = sorted(found, key=lambda row: row[:2])
    for at in range(PARTITIONS):
        records = expected["records"][f"history-{at}"]
        held = [row[1:] for row in rows if row[0] == at]
        assert len(held) >= TIERED
        assert held == [
            (offset, None if key is None else key.encode())
            for offset, _, key, _, _ in records[: len(held)]
        ]
