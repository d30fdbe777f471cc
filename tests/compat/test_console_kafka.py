"""The web console against a real Apache Kafka: it is only a client, so each page that applies is there.

Topics, records, groups, an open transaction, the quorum and the settings are Kafka's own; a bucket it has none.
"""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from tests.compat.apache_kafka import apache_kafka
from tests.integration.console_process import Console, console_process
from tests.integration.test_console_changes import change

pytestmark = [pytest.mark.big, pytest.mark.timeout(300)]
WAIT_S = 60
RECORDS = 300


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    place = tmp_path_factory.mktemp("kafka")
    with apache_kafka(place) as address:
        admin = AdminClient({"bootstrap.servers": address})
        for created in admin.create_topics([NewTopic("orders", 2, 1)]).values():
            created.result(WAIT_S)
        producer = Producer({"bootstrap.servers": address})
        for number in range(RECORDS):
            producer.produce("orders", key=b"k", value=b"order %d" % number, partition=number % 2)
        assert producer.flush(WAIT_S) == 0
        transactional = Producer({"bootstrap.servers": address, "transactional.id": "open"})
        transactional.init_transactions(WAIT_S)
        transactional.begin_transaction()
        transactional.produce("orders", value=b"uncommitted", partition=0)
        assert transactional.flush(WAIT_S) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "billing",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["orders"])
        assert consumer.consume(10, timeout=WAIT_S)
        consumer.commit(asynchronous=False)
        with console_process(place / "console", address, "--allow-changes") as started:
            yield started
        consumer.close()
        transactional.abort_transaction(WAIT_S)


PAGES = (
    "/",
    "/brokers",
    "/topics?internal=yes",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/orders/alter",
    "/topics/orders/delete",
    "/topics/orders/delete-records",
    "/new-topic",
    "/groups",
    "/groups/billing",
    "/quorum",
    "/transactions",
    "/reassignments",
    "/acls",
    "/quotas",
    "/tier",
    "/pipelines",
    "/metrics",
    "/settings",
)


def test_every_page_is_there(console: Console) -> None:
    (broker,) = console.json("/brokers.json")["brokers"]
    for path in (*PAGES, f"/brokers/{broker['id']}"):
        answer = console.get(path)
        assert answer.status == 200, (path, answer.text)
    refused = console.get("/groups/billing/reset")
    assert (refused.status, "member" in refused.text) == (400, True)
    assert broker["directories"][0]["replicas"] > 0
    assert console.json(f"/brokers/{broker['id']}.json")["settings"]
    assert "no <code>tier.url</code>" in console.get("/tier").text


def test_records_offsets_and_settings_are_kafkas(console: Console) -> None:
    found = console.json("/topics/orders.json")
    assert [row["end"] for row in found["partitions"]] == [RECORDS // 2 + 1, RECORDS // 2]
    assert found["size"] > 0
    settings = {row["name"]: row for row in found["settings"]}
    assert settings["retention.ms"]["documentation"].startswith("This configuration controls")
    rows = console.json("/topics/orders/messages.json?partition=1&limit=3")["records"]
    assert [row["value"]["text"] for row in rows] == ["order 299", "order 297", "order 295"]
    assert {row["from"] for row in rows} == {"disk"}


def test_a_group_with_a_member_and_an_open_transaction(console: Console) -> None:
    found = console.json("/groups/billing.json")
    assert (found["state"], len(found["members"])) == ("Stable", 1)
    ends = {row["partition"]: row["end"] for row in found["partitions"]}
    committed = {row["partition"]: row["offset"] for row in found["partitions"]}
    read = {index: offset for index, offset in committed.items() if offset is not None}
    assert sum(read.values()) == 10
    assert found["lag"] == sum(ends[index] - offset for index, offset in read.items())
    assert found["headroom_seconds"] > 0
    (row,) = console.json("/transactions.json")["transactions"]
    assert (row["id"], row["state"], row["partitions"]) == ("open", "Ongoing", ["orders-0"])
    quorum = console.json("/quorum.json")
    assert [one["is_leader"] for one in quorum["replicas"] if one["is_voter"]] == [True]


def test_changes_are_kafkas_too(console: Console) -> None:
    assert change(console, "/new-topic", {"name": "made", "partitions": "3"}).status == 303
    assert len(console.json("/topics/made.json")["partitions"]) == 3
    altered = {"setting": "retention.ms", "value": "70000", "how": "the new value"}
    assert change(console, "/topics/made/alter", altered).status == 303
    settings = {row["name"]: row for row in console.json("/topics/made.json")["settings"]}
    assert settings["retention.ms"]["value"] == "70000"
    before = {"partition": "1", "to": "an offset", "value": "5"}
    done = change(console, "/topics/orders/delete-records", before, confirm="orders")
    assert done.status == 303, done.text
    assert console.json("/topics/orders.json")["partitions"][1]["start"] == 5
    assert change(console, "/topics/made/delete", {}, confirm="made").status == 303
    assert console.get("/topics/made").status == 404
