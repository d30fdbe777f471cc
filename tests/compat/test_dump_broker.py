"""Kafka's DumpLogSegments reads the files of a stopped broker process: its topic, its offsets, its metadata."""

from pathlib import Path

from tests.broker_process import broker_process
from tests.compat.tools import java_tool
from tests.integration.test_foreign_clients import consume_group, create, produce

DUMP = "org.apache.kafka.tools.DumpLogSegments"


def dump(*arguments: str) -> str:
    done = java_tool(DUMP, *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_kafka_reads_the_files_of_a_broker(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        create(broker, "dumped", 1)
        for _ in range(3):  # several batches, so that the indexes have entries
            produce(broker, "dumped", 2000, **{"enable.idempotence": True})
        consume_group(broker, "dumped", "dumping", 6000)
        assert broker.stop() == 0
    (log,) = (broker.data / "dumped-0").glob("*.log")
    said = dump("--deep-iteration", "--files", str(log))
    assert said.count("isvalid: true") > 0
    assert "isvalid: false" not in said
    assert said.count("| offset: ") == 6000
    for suffix in (".index", ".timeindex"):
        assert "passed sanity check" in dump(
            "--index-sanity-check", "--files", str(log.with_suffix(suffix))
        )
    (snapshot,) = (broker.data / "dumped-0").glob("*.snapshot")
    assert "lastSequence: 1999" in dump("--files", str(snapshot))
    metadata = broker.data / "__cluster_metadata-0" / f"{0:020d}.log"
    assert '"name":"dumped"' in dump("--cluster-metadata-decoder", "--files", str(metadata))
    offsets = sorted(broker.data.glob("__consumer_offsets-*/*.log"))
    said = dump("--offsets-decoder", "--files", ",".join(str(path) for path in offsets))
    assert '"group":"dumping"' in said
    assert '"offset":6000' in said
