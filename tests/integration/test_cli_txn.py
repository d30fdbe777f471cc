"""`strata txn` against a real broker, with transactions of librdkafka."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from msgspec.structs import replace
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.server_process import strata
from tests.produce import produce_body
from tests.wire_client import Wire

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.table.decisions import Decision, Decisions, Prepared
from stratalog.table.sink import Write, prepare_rows
from stratalog.table.sink_options import parse_sink_options
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
        assert (listed["transactional_id"], listed["state"]) == ("one", "Ongoing")
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


def test_all_transactions_of_a_prefix_are_ended(tmp_path: Path) -> None:
    with broker_process(tmp_path, transaction__state__log__num__partitions="1") as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)
        decided, lost = (
            "0f8fad5b-d9cb-469f-a165-70867728950e",
            "7c9e6679-7425-40de-944b-e07fc1f90ae7",
        )
        given = {"kafka.bootstrap.servers": broker.address, "topic": "t"}
        options = parse_sink_options(given | {"deliveryGuarantee": "exactly-once"})
        guarantee = options.exactly_once
        assert guarantee is not None

        async def decide(prepared: Prepared) -> None:
            async with await Client.connect(TcpNetwork(), broker.address) as client:
                decision = Decision(decided, 0, "stratalog", (prepared,))
                await Decisions(client, guarantee.decisions_topic).write(decision)

        for query in (decided, lost):
            rows = pa.table({"value": [query]}).to_batches()
            _, prepared = prepare_rows(rows, options, guarantee, Write(query, 0, 1, 0), 0)
            if query == decided:
                assert prepared is not None
                asyncio.run(decide(prepared))
        producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "other"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"other")
        assert producer.flush(30) == 0
        done = strata("txn", "abort", "--prefix", "stratalog-", "-b", broker.address)
        assert (done.returncode, done.stderr) == (
            0,
            "committed 1 decided transactions, aborted 1\n",
        )
        done = strata("txn", "abort", "--prefix", "oth", "-b", broker.address)
        assert done.stderr == "committed 0 decided transactions, aborted 1\n"
        words = ("consume", "t", "--isolation-level", "read_committed", "--until-end")
        seen = strata(*words, "--from", "beginning", "-b", broker.address)
        assert seen.stdout == f"{decided}\n", seen.stderr
        for wrong in (("t",), ("t", "--prefix", "x"), ()):
            refused = strata("txn", "abort", *wrong, "-b", broker.address)
            assert (refused.returncode, refused.stderr) == (
                2,
                "strata: name either TOPIC, --partition and --start, or --prefix\n",
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
