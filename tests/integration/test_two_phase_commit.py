"""KIP-939 against a real broker: a transaction survives its client, its time-out and the broker's kill -9.

Kafka 4.3 serves no version 6 of InitProducerId, so its clients cannot speak it: the requests are made here.
"""

import time
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from msgspec.structs import replace
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.waiting import wait_for
from tests.produce import produce_body
from tests.wire_client import Wire

from stratalog.errors import ErrorCode
from stratalog.wire.messages.api_versions import ApiVersionsRequest
from stratalog.wire.messages.end_txn import EndTxnRequest
from stratalog.wire.messages.find_coordinator import FindCoordinatorRequest
from stratalog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from stratalog.wire.records import Record, build_batch

INIT_PRODUCER_ID = 22
PASSING = {
    ErrorCode.concurrent_transactions,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
}
SETTINGS = {
    "transaction__state__log__num__partitions": "1",
    "transaction__two__phase__commit__enable": "true",
    "transaction__max__timeout__ms": "1000",
    "transaction__abort__timed__out__transaction__cleanup__interval__ms": "100",
}


def newest_version(broker: BrokerProcess) -> int:
    request = ApiVersionsRequest(client_software_name="wire", client_software_version="1")
    with Wire(broker.address) as wire:
        keys = wire.ask(3, request).api_keys
    return next(one.max_version for one in keys if one.api_key == INIT_PRODUCER_ID)


def begin(broker: BrokerProcess, *, keep: bool) -> InitProducerIdResponse:
    """Initialise the transactional id `x` once its coordinator is there."""
    request = InitProducerIdRequest(
        transactional_id="x", transaction_timeout_ms=1, enable2_pc=True, keep_prepared_txn=keep
    )
    found: list[InitProducerIdResponse] = []

    def there() -> bool:
        with Wire(broker.address) as wire:
            found[:] = [wire.ask(6, request)]
        return found[0].error_code not in PASSING

    wait_for(there, "an answer to InitProducerId")
    assert found[0].error_code == 0
    return found[0]


def write(broker: BrokerProcess, producer: InitProducerIdResponse, value: bytes) -> None:
    batch = build_batch(
        [Record(0, round(time.time() * 1000), None, value)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    with Wire(broker.address) as wire:
        (topic,) = wire.ask(12, replace(produce_body("t", batch), transactional_id="x")).responses
    assert topic.partition_responses[0].error_code == 0


def commit(broker: BrokerProcess, producer_id: int, epoch: int) -> ErrorCode:
    request = EndTxnRequest(
        transactional_id="x", producer_id=producer_id, producer_epoch=epoch, committed=True
    )
    with Wire(broker.address) as wire:
        return ErrorCode(wire.ask(5, request).error_code)


def committed(broker: BrokerProcess, count: int) -> list[bytes]:
    """The first values that a reader of committed records sees."""
    settings = {"bootstrap.servers": broker.address, "group.id": "g", "log_level": 0}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        found = consumer.consume(count, timeout=30)
    finally:
        consumer.close()
    return [one.value() for one in found]


def test_a_transaction_outlives_its_client_its_time_out_and_a_kill(tmp_path: Path) -> None:
    with broker_process(tmp_path, **SETTINGS) as broker:
        assert newest_version(broker) == 6
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("t", 1)])["t"].result(30)
        with Wire(broker.address) as wire:  # the first look-up creates the coordinator's topic
            wire.ask(4, FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]))
        writer = begin(broker, keep=False)
        write(broker, writer, b"kept")
        broker.kill()
        broker.start()
        time.sleep(1)  # more than the time-out; a broker that ended it is seen below
        client = begin(broker, keep=True)
        ongoing = (client.ongoing_txn_producer_id, client.ongoing_txn_producer_epoch)
        assert ongoing == (writer.producer_id, writer.producer_epoch)
        assert commit(broker, *ongoing) is ErrorCode.producer_fenced, "a newer client is to end it"
        broker.kill()
        broker.start()
        end = (broker, client.producer_id, client.producer_epoch)
        wait_for(lambda: commit(*end) is ErrorCode.none, "the end of the transaction")
        assert committed(broker, 1) == [b"kept"]


def test_a_broker_has_no_version_6_unless_it_is_asked_to(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        assert newest_version(broker) == 5
