"""An inspection of directories that our server does not start on."""

import pytest

from stratalog.adapters.local_disk import LocalDisk
from stratalog.metadata.snapshot import encode_checkpoint
from stratalog.ops.migration import inspect
from stratalog.wire.internal.metadata import encode
from stratalog.wire.internal.metadata_records import FeatureLevelRecord
from stratalog.wire.internal.security_records import ClientQuotaRecord, EntityData
from stratalog.wire.records import BatchBuilder


def level(number):
    return FeatureLevelRecord(name="metadata.version", feature_level=number)


def first(number):
    """Return a `bootstrap.checkpoint` as Kafka's format writes it."""
    others = FeatureLevelRecord(name="group.version", feature_level=1)
    records = [level(number), others]
    return encode_checkpoint(records, 0, last_contained_timestamp_ms=0, epoch=0)


def later_log():
    """Return a log of a later metadata.version, with a record that only that has."""
    batch = BatchBuilder()
    batch.add(None, encode(level(31)), 0)
    batch.add(None, b"\x01\x64\x00later", 0)
    return bytes(batch.build())


LOG = f"__cluster_metadata-0/{0:020}.log"
META = "version=1\ncluster.id=fPPmFC6FTVGQ9jPVi5F-zA\nnode.id=1\n"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no formatted log directory"),
        ({"meta.properties": "version=0\nbroker.id=1\ncluster.id=a\n"}, "ZooKeeper"),
        (
            {"meta.properties": META, "__cluster_metadata-0/0.log": ""},
            None,
        ),
        ({"meta.properties": META, LOG: "", "bootstrap.checkpoint": first(25)}, None),
        (
            {"meta.properties": META, LOG: "", "bootstrap.checkpoint": first(24)},
            "kafka-features.sh upgrade --release-version 4.3",
        ),
        ({"meta.properties": META, LOG: "", "bootstrap.checkpoint": first(31)}, "is above 30"),
        ({"meta.properties": META, LOG: later_log()}, "metadata.version 31, known are 25 to 30"),
    ],
)
def test_a_directory_that_cannot_be_opened_says_why(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    disk = LocalDisk(str(tmp_path))
    refused = [one.text for one in inspect(disk) if one.kind == "refused"]
    disk.close()
    assert len(refused) == (said is not None), refused
    if said is not None:
        assert said in refused[0]


def test_features_that_are_not_served_are_named_where_kafka_has_only_formatted(tmp_path):
    (tmp_path / "meta.properties").write_text(META)
    (tmp_path / LOG).parent.mkdir()
    (tmp_path / "bootstrap.checkpoint").write_bytes(first(29))
    disk = LocalDisk(str(tmp_path))
    found = {(one.kind, one.text) for one in inspect(disk)}
    disk.close()
    levels = "no records yet; bootstrap.checkpoint has metadata.version=29, group.version=1"
    assert ("holds", levels) in found
    assert ("differs", "the cluster begins without group.version: not served") in found


def test_a_quota_of_a_host_name_is_reported_to_have_no_effect(tmp_path):
    names = ["10.0.0.1", "2001:DB8::1", None, "host.example"]
    records = [
        ClientQuotaRecord(
            entity=(EntityData(entity_type="ip", entity_name=name),),
            key="connection_creation_rate",
            value=5.0,
            remove=False,
        )
        for name in names
    ]
    batch = BatchBuilder()
    for record in [level(30), *records]:
        batch.add(None, encode(record), 0)
    (tmp_path / LOG).parent.mkdir()
    (tmp_path / LOG).write_bytes(bytes(batch.build()))
    (tmp_path / "meta.properties").write_text(META)
    disk = LocalDisk(str(tmp_path))
    found = [one.text for one in inspect(disk) if one.kind == "differs"]
    disk.close()
    assert found == ["a quota of ip host.example has no effect: names are not looked up"]
