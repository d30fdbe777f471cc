"""Goal: Apache Kafka's own transactional producer works with our broker, in the second protocol (KIP-890).

Method: a program of Java that commits, aborts, sends offsets and dies with a transaction open, against a broker that is
killed meanwhile; what a reader of committed records sees, and the epochs that the coordinator tells.
"""

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.nodes import DEFAULT_FACTOR, EACH_NUMBER, Serving, kill_and_start, serving
from tests.compat.test_transactions import consumed
from tests.compat.tools import java_tool, kafka_lib

SOURCE = """
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

class Copies {
    public static void main(String[] words) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", words[0], "transactional.id", "tx",
            "transaction.timeout.ms", "30000", "max.block.ms", "60000");
        var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        for (var step : words[1].split(",")) {
            var what = step.split(":");
            producer.beginTransaction();
            for (int partition = 0; partition < 3; partition++)
                producer.send(new ProducerRecord<>("t", partition, null, what[1]));
            var offsets = Map.of(new TopicPartition("t", 0), new OffsetAndMetadata(Long.parseLong(what[2])));
            producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata("g"));
            producer.flush();
            if (what[0].equals("leave")) {
                System.out.flush();
                Runtime.getRuntime().halt(0);
            }
            if (what[0].equals("commit")) producer.commitTransaction();
            else producer.abortTransaction();
        }
        producer.close();
        try (var admin = Admin.create(Map.of("bootstrap.servers", words[0]))) {
            var found = admin.describeTransactions(List.of("tx")).description("tx").get();
            var offset = admin.listConsumerGroupOffsets("g").partitionsToOffsetAndMetadata().get();
            System.out.println(found.producerEpoch() + " " + offset.get(new TopicPartition("t", 0)).offset());
        }
    }
}
"""


def carried_out(broker: Serving, source: Path, steps: str) -> str:
    done = java_tool(str(source), broker.address, steps)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def seen(broker: Serving) -> bytes:
    return b"".join(value for _, value in consumed(broker.address, "read_committed"))


@EACH_NUMBER
def test_javas_producer_commits_aborts_and_goes_on_after_kills(tmp_path: Path, nodes: int) -> None:
    kafka_lib()
    source = tmp_path / "Copies.java"
    source.write_text(SOURCE)
    with serving(tmp_path, nodes, transaction__state__log__num__partitions="3") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        (created,) = admin.create_topics([NewTopic("t", 3, DEFAULT_FACTOR)]).values()
        created.result(60)
        said = carried_out(broker, source, "commit:a:1,abort:b:2,commit:c:3,abort:d:4")
        assert said == "4 3", "each end raises the epoch; the aborted offset does not count"
        assert seen(broker) == b"ac"
        carried_out(broker, source, "commit:e:5,leave:f:6")
        kill_and_start(broker)
        # A new producer takes epoch 5, and one end took 6; the abort of the open transaction takes 7, which also fences
        # (KAFKA-19367), and the new producer 8.
        assert carried_out(broker, source, "commit:g:7") == "9 7"
        assert seen(broker) == b"aceg"
