"""Keys go to the same partitions as with Java's producer: our hash compared with Kafka's own classes and records."""

from pathlib import Path
from random import Random

from tests.broker_process import broker_process
from tests.compat.tools import java_tool
from tests.integration.server_process import strata

from stratalog.wire.murmur2 import murmur2, partition_of_key

KEYS = 20_000
PARTITIONS = 7
HASHES = """
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;

class Hashes {
    public static void main(String[] words) throws Exception {
        var out = new StringBuilder();
        for (var line : new String(System.in.readAllBytes()).split("\\n")) {
            var fields = line.split(",", -1);
            byte[] key = HexFormat.of().parseHex(fields[0]);
            int partition = BuiltInPartitioner.partitionForKey(key, Integer.parseInt(fields[1]));
            out.append(Utils.toPositive(Utils.murmur2(key))).append(' ').append(partition).append('\\n');
        }
        System.out.print(out);
    }
}
"""


def test_random_keys_get_the_hash_and_partition_of_kafkas_classes(tmp_path: Path) -> None:
    chance = Random(7)
    keys = [chance.randbytes(chance.randrange(70)) for _ in range(KEYS)]
    counts = [chance.choice((1, 2, 3, 7, 50, 1000, 2**31 - 1)) for _ in keys]
    source = tmp_path / "Hashes.java"
    source.write_text(HASHES)
    asked = "\n".join(f"{key.hex()},{count}" for key, count in zip(keys, counts, strict=True))
    done = java_tool(str(source), input_text=asked)
    assert done.returncode == 0, done.stderr
    answers = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    ours = [
        (murmur2(key), partition_of_key(key, count))
        for key, count in zip(keys, counts, strict=True)
    ]
    assert ours == answers


def test_records_of_javas_console_producer_are_in_the_partitions_that_ours_chooses(
    tmp_path: Path,
) -> None:
    keys = [f"{number}é" * (number % 5) for number in range(300)]
    lines = "".join(f"{key}|{number}\n" for number, key in enumerate(keys))
    with broker_process(tmp_path, num__partitions=str(PARTITIONS)) as broker:
        at = ("-b", broker.address)

        def placed(topic: str) -> dict[str, str]:
            read = ("consume", topic, "--from", "beginning", "--until-end", "--format")
            done = strata(*read, r"%s %p\n", *at)
            return dict(line.split(" ") for line in done.stdout.splitlines())

        for topic in ("java", "ours"):
            assert strata("topic", "create", topic, *at).returncode == 0
        parsed = ("parse.key=true", "key.separator=|")
        reader = [word for line in parsed for word in ("--reader-property", line)]
        sent = ("--bootstrap-server", broker.address, "--topic", "java", *reader)
        done = java_tool("org.apache.kafka.tools.ConsoleProducer", *sent, input_text=lines)
        assert done.returncode == 0, done.stderr
        ours = ("produce", "ours", "--key-separator", "|", *at)
        assert strata(*ours, stdin=lines).returncode == 0
        java = placed("java")
        assert placed("ours") == java
        assert len(java) == len(keys)
        assert len(set(java.values())) == PARTITIONS
