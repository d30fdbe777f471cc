"""`strata txn` against a real broker, with transactions of librdkafka."""

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from msgspec.structs import replace
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.server_process import strata
from tests.produce import produce_body
from tests.wire_client import Wire

from stratalog.wire.records import Record, build_batch


def asked(broker: BrokerProcess, *words: str) -> Any:
    """Run a command of `strata txn` that prints JSON."""
    done = strata("txn", *words, "--json", "-b", broker.address)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_transactions_are_listed_described_and_hanging_ones_aborted(tmp_path: Path) -> None:
    # Without verification a batch may come after its transaction's end.
    settings = {
        "transaction__state__log__num__partitions": "1",
        "transaction__partition__verification__enable": "false",
    }
    with broker_process(tmp_path, **settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", 2)])["t"].result(30)
        producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "one"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"x", partition=0)
        assert producer.flush(30) == 0
        (listed,) = asked(broker, "list")
        assert (listed["transactional id"], listed["state"]) == ("one", "Ongoing")
        assert asked(broker, "list", "--state", "Empty") == []
        assert asked(broker, "list", "--pattern", "o.e|two") == [listed]
        assert asked(broker, "list", "--pattern", "on") == []
        refused = strata("txn", "list", "--pattern", "(", "-b", broker.address)
        assert (refused.returncode, refused.stderr) == (
            2,
            "strata: transactions: INVALID_REGULAR_EXPRESSION\n",
        )
        assert asked(broker, "list", "--longer-than", "3600") == []
        described = asked(broker, "describe", "one")
        assert (described["state"], described["partitions"]) == ("Ongoing", ["t-0"])
        assert asked(broker, "find-hanging", "--longer-than", "0") == [], "its coordinator knows it"
        write_late(broker, described["producer"])
        (hanging,) = asked(broker, "find-hanging", "--longer-than", "0")
        assert (hanging["topic"], hanging["partition"], hanging["start"]) == ("t", 1, 0)
        words = ("txn", "abort", "t", "--partition", "1", "-b", broker.address)
        wrong = strata(*words, "--start", "7")
        assert wrong.returncode == 2
        assert "open ones begin at 0" in wrong.stderr
        done = strata(*words, "--start", "0")
        assert done.returncode == 0, done.stderr
        assert asked(broker, "find-hanging", "--longer-than", "0") == []
        producer.commit_transaction(30)
        missing = strata("txn", "describe", "none", "-b", broker.address)
        assert (missing.returncode, missing.stderr) == (
            2,
            "strata: transactional id none does not exist\n",
        )


def write_late(broker: BrokerProcess, producer_id: int) -> None:
    """Write a batch of a transaction into partition 1, which the transaction does not have."""
    record = Record(0, 1_700_000_000_000, None, b"late")
    batch = build_batch(
        [record], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )
    request = replace(produce_body("t", batch, index=1), transactional_id="one")
    with Wire(broker.address) as wire:
        (topic,) = wire.ask(9, request).responses
    assert topic.partition_responses[0].error_code == 0
