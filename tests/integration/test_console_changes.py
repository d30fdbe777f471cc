"""Changes through the web console: a preview first, a typed name for a deletion, and nothing without permission."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Consumer
from tests.broker_process import BrokerProcess
from tests.integration.console_cluster import HOSTILE, Tags, filled_broker
from tests.integration.console_process import Console, console_process

from stratalog.adapters.network import TcpNetwork
from stratalog.client.admin import commit_offsets
from stratalog.client.aio import Client
from stratalog.wire.ids import TopicPartition

WAIT_S = 60
GROUP = "\u202egroup"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with filled_broker(tmp_path_factory.mktemp("changes")) as started:
        yield started


@pytest.fixture(scope="module")
def console(broker: BrokerProcess) -> Iterator[Console]:
    """One that may change nothing."""
    place = broker.directory / "console"
    with console_process(place, broker.address, "--tier", broker.bucket_url) as started:
        yield started


@pytest.fixture(scope="module")
def changing(broker: BrokerProcess) -> Any:
    with console_process(
        broker.directory / "changing", broker.address, "--allow-changes"
    ) as started:
        yield started


def kept_by(text: str) -> dict[str, str]:
    """The hidden fields of a page's form."""
    return {
        attributes["name"] or "": attributes["value"] or ""
        for tag, attributes in Tags(text).tags
        if tag == "input" and attributes.get("type") == "hidden"
    }


def change(console: Console, path: str, form: dict[str, str], confirm: str = "") -> Any:
    """Go through a change as a browser does: the form, its preview, its button. The last answer."""
    preview = console.get(path)
    if "What will happen" not in preview.text:  # a deletion has nothing to choose
        preview = console.post(path, {**kept_by(preview.text), **form})
    assert preview.status == 200, preview.text
    assert "What will happen" in preview.text
    final = kept_by(preview.text)
    assert final["step"] == "do"
    return console.post(path, {**final, "confirm": confirm})


def test_a_topic_is_created_altered_and_deleted_with_previews(changing: Console) -> None:
    form = {"name": "made", "partitions": "2", "settings": "retention.ms=60000\n"}
    preview = changing.post("/new-topic", {**kept_by(changing.get("/new-topic").text), **form})
    assert "60000" in preview.text
    assert changing.get("/topics/made").status == 404, "a preview changes nothing"
    done = change(changing, "/new-topic", form)
    assert (done.status, done.headers["location"]) == (303, "/topics/made")
    assert len(changing.json("/topics/made.json")["partitions"]) == 2

    def value() -> Any:
        rows = {row["name"]: row for row in changing.json("/topics/made.json")["settings"]}
        return rows["retention.ms"]["value"], rows["retention.ms"]["source"]

    altered = {"setting": "retention.ms", "value": "70000", "how": "the new value"}
    assert change(changing, "/topics/made/alter", altered).status == 303
    assert value() == ("70000", "topic")
    altered = {"setting": "retention.ms", "value": "", "how": "the default"}
    assert change(changing, "/topics/made/alter", altered).status == 303
    assert value()[1] == "default"
    refused = change(changing, "/topics/made/delete", {}, confirm="Made")
    assert (refused.status, "nothing was deleted: type made" in refused.text) == (400, True)
    links = [one.get("href") for tag, one in Tags(refused.text).tags if tag == "a"]
    assert "/topics/made/delete" in links, "the way back to the form"
    assert changing.get("/topics/made").status == 200
    done = change(changing, "/topics/made/delete", {}, confirm="made")
    assert (done.status, done.headers["location"]) == (303, "/topics")
    assert changing.get("/topics/made").status == 404


def test_records_below_an_offset_are_deleted_as_the_preview_said(changing: Console) -> None:
    form = {"partition": "", "to": "an offset", "value": "3"}
    assert change(changing, "/topics/hostile/delete-records", form).status == 400
    done = change(changing, "/topics/hostile/delete-records", form, confirm="hostile")
    assert done.status == 303
    (row,) = changing.json("/topics/hostile.json")["partitions"]
    assert (row["start"], row["end"]) == (3, len(HOSTILE))


def test_a_deletion_says_how_many_bytes_the_bucket_loses(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    options = ("--allow-changes", "--tier", broker.bucket_url)
    with console_process(tmp_path, broker.address, *options) as console:
        topic = console.json("/topics/orders.json")
        assert topic["tiered_bytes"] > 0
        rows = {one["what"]: one for one in console.json("/topics/orders/delete.json")["preview"]}
        assert rows["bytes in the bucket"]["before"] == topic["tiered_bytes"]


def test_a_name_is_confirmed_as_the_page_shows_it(changing: Console, broker: BrokerProcess) -> None:
    async def commit() -> None:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            call = commit_offsets(GROUP, {TopicPartition("orders", 0): 1})
            await client.on_coordinator(GROUP, call)

    asyncio.run(commit())
    path = f"/groups/{quote(GROUP)}"
    assert GROUP not in changing.get(path).text
    assert change(changing, f"{path}/delete", {}, confirm="\\u202e").status == 400
    assert change(changing, f"{path}/delete", {}, confirm="\\u202egroup").status == 303
    assert changing.get(path).status == 404


def test_what_a_form_sends_back_is_what_was_typed(changing: Console) -> None:
    text = changing.get("/topics/hostile/messages?" + urlencode({"q": GROUP})).text
    typed = [one["value"] for tag, one in Tags(text).tags if tag == "input" and one["name"] == "q"]
    assert typed == [GROUP]
    form = {"name": "typed", "partitions": "1", "other": GROUP}
    preview = changing.post("/new-topic", {**kept_by(changing.get("/new-topic").text), **form})
    assert kept_by(preview.text)["other"] == GROUP


def test_a_groups_offsets_are_reset_and_the_group_is_deleted(changing: Console) -> None:
    path = "/groups/a%2Fb%20%3Cx%3E"
    form = {"topic": "orders", "partition": "1", "to": "the beginning", "value": ""}
    assert change(changing, f"{path}/reset", form).status == 303
    rows = changing.json(f"{path}.json")["partitions"]
    assert [row["offset"] for row in rows] == [100, 0]
    assert change(changing, f"{path}/delete", {}, confirm="a/b <x>").status == 303
    assert changing.get(path).status == 404


MANY = "\n".join(f"retention.ms{number}=1" for number in range(51))


@pytest.mark.parametrize(
    ("path", "form", "words"),
    [
        ("/new-topic", {"name": "no/good"}, "no/good"),
        ("/new-topic", {"name": "orders"}, "orders"),
        ("/new-topic", {"name": "n", "partitions": "0"}, "accepted: 1 to 100000"),
        ("/new-topic", {"name": "n", "settings": "retention"}, "accepted: NAME=VALUE"),
        ("/new-topic", {"name": "n", "settings": "no.such=1"}, "no.such"),
        (
            "/topics/orders/delete-records",
            {"to": "an offset", "value": "x"},
            "accepted: 0 to 9223372036854775807",
        ),
        ("/new-topic", {"name": "n", "partitions": "1" + "0" * 9}, "accepted: 1 to 100000"),
        ("/new-topic", {"name": "n", "partitions": "0000000012"}, "accepted: 1 to 100000"),
        ("/new-topic", {"name": "n", "settings": "=1"}, "accepted: NAME=VALUE"),
        ("/new-topic", {"name": "n", "settings": MANY}, "settings: at most 50 at a time"),
        ("/topics/orders/delete-records", {"to": "the moon"}, "accepted: the beginning, the end"),
        ("/topics/orders/delete-records", {"to": "a time", "value": "soon"}, "time: &#39;soon"),
        (
            "/topics/orders/delete-records",
            {"to": "an offset", "value": "9" * 19},
            "accepted: 0 to 9223372036854775807",
        ),
        ("/topics/orders/delete-records", {"to": "the end", "partition": "9"}, "partition: &#39;9"),
        ("/topics/orders/delete-records", {"to": "the end", "partition": "0" * 9 + "1"}, "leader"),
        ("/topics/orders/alter", {"setting": "no.such", "value": "1"}, "no.such"),
        ("/topics/orders/alter", {"setting": "retention.ms", "value": "soon"}, "retention.ms"),
    ],
)
def test_a_change_that_cannot_be_is_refused_before_its_button(
    changing: Console, path: str, form: dict[str, str], words: str
) -> None:
    token = changing.token("/new-topic")
    answer = changing.post(path, {"token": token, "step": "preview", **form})
    assert (answer.status, words in answer.text) == (400, True), answer.text


CHANGES = (
    "/new-topic",
    "/topics/orders/alter",
    "/topics/orders/delete",
    "/topics/orders/delete-records",
    "/groups/billing/reset",
    "/groups/billing/delete",
)


def test_a_group_that_reads_is_not_reset(changing: Console, broker: BrokerProcess) -> None:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reading"})
    try:
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + WAIT_S
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.1)
        found = changing.json("/groups/reading.json")
        assert len(found["members"]) == 1
        lags = [(one["lag"], one["lag_seconds"]) for one in found["partitions"]]
        assert lags == [(None, None)] * 2, "nothing was committed"
        answer = changing.get("/groups/reading/reset")
        assert (answer.status, "has 1 member(s): stop them first" in answer.text) == (400, True)
    finally:
        consumer.close()


@pytest.mark.parametrize("path", CHANGES)
def test_without_allow_changes_nothing_changes(console: Console, path: str) -> None:
    assert console.get(path).status == 403
    token = console.token("/tier")
    names = {"step": "do", "confirm": "orders", "name": "sneaked", "offsets": "0:10"}
    assert console.post(path, {"token": token, **names}).status == 403
    for shown in ("/topics", "/topics/orders", "/groups/billing"):
        assert not [one for one in CHANGES if f'href="{one}"' in console.get(shown).text]


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_needs_the_token_of_this_console(
    changing: Console, console: Console, path: str
) -> None:
    names = {"step": "do", "confirm": "orders", "name": "sneaked", "offsets": "0:10"}
    for token in ("", console.token("/tier")):
        answer = changing.post(path, {"token": token, **names})
        assert (answer.status, "not of a page of this console" in answer.text) == (400, True)
    assert console.get("/topics/sneaked").status == 404
