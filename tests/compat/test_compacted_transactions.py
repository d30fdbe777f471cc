"""Readers of committed records see the same on a compacted topic before and after its log is cleaned.

Method: a transactional producer commits and aborts in turn, under few keys, and the last transaction stays open. The
broker cleans the log meanwhile, its markers too. librdkafka's consumer, `stratalog.read` and `strata consume` must see
the last committed value of each key, nothing of an aborted transaction, and all of them the same offsets.
"""

from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.test_transactions import consumed, printed, seen, transactional
from tests.integration.waiting import wait_for

from stratalog.testing import TemporaryBroker

KEYS = 5
TURNS = 12
CLEANING = {"log.cleaner.backoff.ms": "100", "transaction.state.log.num.partitions": "1"}
COMPACTED = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
READERS: tuple[Callable[[str, str], list[tuple[int, bytes]]], ...] = (consumed, seen, printed)


def test_readers_of_a_cleaned_log_see_the_last_committed_values() -> None:
    with TemporaryBroker(CLEANING) as broker:
        address = broker.address
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", 1, 1, config=COMPACTED)])["t"].result(30)
        producer = transactional(address, "compacted")
        for turn in range(TURNS + 1):
            producer.begin_transaction()
            for key in range(KEYS - turn % 2):  # an abort leaves the last key out
                producer.produce("t", b"%d/%d" % (turn, key), b"%d" % key, partition=0)
            assert producer.flush(30) == 0
            if turn < TURNS:  # the last one stays open
                (producer.abort_transaction if turn % 2 else producer.commit_transaction)(30)
                broker.advance(61_000)  # the next batch begins a segment
        last = TURNS - 2

        def is_cleaned() -> bool:
            """Only the segments behind the cleaned ones have more than a value of each key."""
            found = {value.partition(b"/")[0] for _, value in seen(address, "read_uncommitted")}
            return not found & {b"%d" % turn for turn in range(last - 1)}

        wait_for(is_cleaned, "the cleaner")
        for isolation in ("read_committed", "read_uncommitted"):
            first, second, third = (reader(address, isolation) for reader in READERS)
            assert first == second == third, isolation
        committed = [value for _, value in consumed(address, "read_committed")]
        assert committed[-KEYS:] == [b"%d/%d" % (last, key) for key in range(KEYS)]
        assert all(int(value.partition(b"/")[0]) % 2 == 0 for value in committed)
        producer.commit_transaction(30)
        whole = [b"%d/%d" % (TURNS, key) for key in range(KEYS)]
        wait_for(
            lambda: [one for _, one in consumed(address, "read_committed")][-KEYS:] == whole,
            "the last transaction",
        )
