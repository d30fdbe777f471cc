"""The web console: a real process beside a real broker with a bucket, asked over HTTP.

Every page is asked as HTML and as JSON. The console must show what was produced, where it is read from, and nothing
that a record could make of a page.
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.broker_process import BrokerProcess
from tests.integration.console_cluster import (
    HOSTILE,
    RECORDS,
    TIER_WAIT_S,
    Tags,
    filled_broker,
)
from tests.integration.console_process import Console, console_process
from tests.integration.server_process import strata

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.wire.records import BatchBuilder


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with filled_broker(tmp_path_factory.mktemp("console")) as started:
        yield started


@pytest.fixture(scope="module")
def console(broker: BrokerProcess) -> Iterator[Console]:
    place = broker.directory / "console"
    with console_process(place, broker.address, "--tier", broker.bucket_url) as started:
        yield started


def test_the_thread_that_renders_pages_gives_way_to_a_broker(console: Console) -> None:
    assert os.getpriority(os.PRIO_PROCESS, console.pid) > os.getpriority(os.PRIO_PROCESS, 0)


PATHS = (
    "/",
    "/brokers",
    "/brokers/1",
    "/topics",
    "/topics/orders",
    "/topics/orders/messages",
    "/topics/hostile/messages",
    "/groups",
    "/groups/billing",
    "/groups/a%2Fb%20%3Cx%3E",
    "/tier",
    "/tier?topic=orders",
    "/quorum",
    "/acls",
    "/quotas",
    "/reassignments",
    "/transactions",
    "/pipelines",
    "/metrics",
    "/settings",
)


@pytest.mark.parametrize("path", PATHS)
def test_each_page_is_html_without_a_foreign_address_or_an_inline_script(
    console: Console, path: str
) -> None:
    answer = console.get(path)
    assert answer.status == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    tags = Tags(answer.text).tags
    assert [tag for tag, _ in tags].count("h1") == 1
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
        for name in ("href", "src", "action"):
            address = attributes.get(name) or "/"
            assert address.startswith(("/", "#")), f"{tag} {name}={address}"
            assert not address.startswith("//")
        if tag == "script":
            assert (attributes["src"] or "").startswith("/static/console.js?v=")


@pytest.mark.parametrize("path", PATHS)
def test_each_page_is_json_too(console: Console, path: str) -> None:
    bare, mark, query = path.partition("?")
    found = console.json(("/overview" if bare == "/" else bare) + ".json" + mark + query)
    assert isinstance(found, dict)
    assert found


def test_the_answers_forbid_foreign_scripts_frames_and_caches(console: Console) -> None:
    headers = console.get("/").headers
    policy = dict(
        one.strip().split(" ", 1) for one in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["form-action"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_a_topic_shows_its_bytes_on_disk_and_in_the_bucket(console: Console) -> None:
    found = console.json("/topics/orders.json")
    assert found["records"] == 2 * RECORDS
    assert found["tiered_bytes"] > found["size"] > 0
    first = found["partitions"][0]
    assert (first["start"], first["end"]) == (0, RECORDS)
    assert 0 < first["local_start"] == first["tiered_last"] + 1 < RECORDS
    settings = {row["name"]: row for row in found["settings"]}
    assert settings["segment.bytes"]["value"] == "1048576"
    assert settings["segment.bytes"]["source"] == "topic"
    assert settings["segment.bytes"]["documentation"]


def test_a_name_that_ends_in_json_has_a_page_and_json(console: Console) -> None:
    assert "/topics/odd%2Ejson" in console.get("/topics").text
    assert "<h1>odd.json</h1>" in console.get("/topics/odd%2Ejson").text
    assert console.json("/topics/odd.json.json")["name"] == "odd.json"


def offsets(found: dict[str, Any], partition: int) -> list[int]:
    return [row["offset"] for row in found["records"] if row["partition"] == partition]


def test_the_newest_records_come_from_the_disk_and_the_oldest_from_the_bucket(
    console: Console,
) -> None:
    newest = console.json("/topics/orders/messages.json?limit=10&partition=0")
    assert offsets(newest, 0) == list(range(RECORDS - 1, RECORDS - 11, -1))
    assert {row["from"] for row in newest["records"]} == {"disk"}
    oldest = console.json("/topics/orders/messages.json?from=beginning&limit=10&partition=0")
    assert offsets(oldest, 0) == list(range(10))
    assert {row["from"] for row in oldest["records"]} == {"bucket"}
    assert json.loads(oldest["records"][3]["value"]["text"])["order"] == 3


def pages(console: Console, path: str) -> list[dict[str, Any]]:
    """A page of records and all that its links to the next one lead to."""
    found: list[dict[str, Any]] = []
    address: str | None = path
    while address:
        bare, _, query = address.partition("?")
        found.append(console.json(f"{bare}.json?{query}"))
        address = found[-1]["next"]
        assert len(found) < 100, "the links have no end"
    return found


@pytest.mark.parametrize("start", ["beginning", "end"])
def test_the_links_between_pages_lead_to_every_record_once(console: Console, start: str) -> None:
    found = pages(console, f"/topics/orders/messages?from={start}&limit=500")
    for partition in range(2):
        seen = [offset for page in found for offset in offsets(page, partition)]
        assert sorted(seen) == list(range(RECORDS))
    sources = {row["from"] for page in found for row in page["records"]}
    assert sources == {"disk", "bucket"}


def test_a_filter_finds_the_same_records_from_both_ends(console: Console) -> None:
    wanted = {RECORDS - 1, 1234, 7}
    for start in ("beginning", "end"):
        for number in wanted:
            query = f"from={start}&partition=1&q=%22order%22%3A+{number}%2C"
            found = [
                row
                for page in pages(console, f"/topics/orders/messages?{query}")
                for row in page["records"]
            ]
            assert [row["offset"] for row in found] == [number]


def test_a_key_is_looked_for_in_its_partition(console: Console) -> None:
    found = pages(console, "/topics/orders/messages?from=key&key=key-7&limit=500")
    rows = [row for page in found for row in page["records"]]
    assert len({row["partition"] for row in rows}) == 1
    assert [row["offset"] for row in rows] == list(range(7, RECORDS, 50))


def test_records_from_a_time_on(console: Console) -> None:
    first = console.json("/topics/orders/messages.json?from=offset&value=2000&partition=0&limit=1")
    at_ms = first["records"][0]["timestamp"]
    for time_text in (
        str(at_ms),
        time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_ms / 1000 + 1)),
    ):
        query = f"from=time&value={time_text}&partition=0&limit=1"
        (row,) = console.json(f"/topics/orders/messages.json?{query}")["records"]
        assert 0 <= row["timestamp"] - at_ms <= 1000
        assert row["offset"] == 2000 + row["timestamp"] - at_ms


def test_the_follow_link_shows_only_what_was_written_since(
    console: Console, broker: BrokerProcess
) -> None:
    address = console.json("/topics/empty/messages.json")["follow"]

    async def produce(text: bytes) -> None:
        async with await Client.connect(TcpNetwork(), broker.address) as client:
            builder = BatchBuilder()
            builder.add(None, text, int(time.time() * 1000))
            await client.produce("empty", 0, builder.build())

    for text in ("one", "two"):
        asyncio.run(produce(text.encode()))
        bare, _, query = address.partition("?")
        found = console.json(f"{bare}.json?{query}")
        assert [row["value"]["text"] for row in found["records"]] == [text]
        address = found["follow"]


@pytest.mark.parametrize("form", ["text", "json", "hex"])
def test_a_hostile_record_is_text(console: Console, form: str) -> None:
    answer = console.get(f"/topics/hostile/messages?format={form}")
    tags = [tag for tag, _ in Tags(answer.text).tags]
    assert tags.count("script") == 1, "the console's own"
    assert not {"img", "b", "i", "u"} & set(tags)
    assert "\u202e" not in answer.text
    assert "\x07" not in answer.text
    rows = console.json(f"/topics/hostile/messages.json?format={form}&from=beginning")["records"]
    assert [row["value"]["bytes"] for row in rows] == [
        None if value is None else len(value) for value in HOSTILE
    ]
    assert rows[2]["value"]["form"] == "hex"
    assert rows[7]["value"]["is_cut"]
    whole = console.get(rows[7]["whole"])
    assert whole.text.count("x" * 10_000) == (form != "hex")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/nothing", 404, "has no page /nothing"),
        ("/topics/gone", 404, "topic gone does not exist"),
        ("/topics/gone/messages", 404, "topic gone does not exist"),
        ("/groups/gone", 404, "group gone does not exist"),
        ("/brokers/7", 404, "the cluster has no broker 7"),
        ("/topics/%3Cscript%3E", 404, "does not exist"),
        ("/topics/orders/messages?partition=9", 400, "topic orders has no partition 9; it has 2"),
        ("/topics/orders/messages?limit=501", 400, "accepted: 1 to 500"),
        ("/topics/orders/messages?from=middle", 400, "accepted: end, beginning, offset, time, key"),
        ("/topics/orders/messages?from=offset&value=x", 400, "offset: &#39;x&#39; is not accepted"),
        (
            "/topics/orders/messages?from=time&value=soon",
            400,
            "time: &#39;soon&#39; is not accepted",
        ),
        ("/topics/orders/messages?from=key", 400, "key: it is empty"),
        (
            "/topics/orders/messages?from=offset&value=" + "9" * 19,
            400,
            "accepted: 0 to 9223372036854775807",
        ),
        ("/topics/orders/messages?format=xml", 400, "accepted: text, json, hex"),
        ("/topics/orders/messages?at=0:x", 400, "accepted: PARTITION:OFFSET"),
        ("/topics/orders/messages?until=0", 400, "until: &#39;0&#39; is not accepted"),
        ("/topics/orders/messages?until=" + "9" * 10 + ":1", 400, "is not accepted"),
        ("/topics/orders/messages?at=0:" + "9" * 19, 400, "accepted: 0 to 9223372036854775807"),
        ("/topics?page=-1", 400, "accepted: 1 to"),
        ("/topics?sort=color", 400, "accepted: name, size, records, rate, partitions, skew"),
        ("/topics?internal=maybe", 400, "accepted: no, yes"),
        ("/groups?page=0", 400, "accepted: 1 to"),
        ("/topics?" + "&".join(f"a{n}=1" for n in range(300)), 400, "is not accepted"),
        ("/topics?q=" + "x" * 20_000, 400, "of more than"),
    ],
)
def test_a_mistake_gets_a_page_that_names_it(
    console: Console, path: str, status: int, words: str
) -> None:
    answer = console.get(path)
    assert (answer.status, words in answer.text) == (status, True), answer.text
    bare, mark, query = path.partition("?")
    as_json = console.get(bare + ".json" + mark + query)
    assert as_json.status == status
    assert json.loads(as_json.text)["error"]


def test_groups_show_lag_time_and_room_until_deletion(console: Console) -> None:
    listed = {row["name"]: row for row in console.json("/groups.json")["groups"]}
    assert listed["billing"]["lag"] == RECORDS - 100
    found = console.json("/groups/billing.json")
    behind, read = found["partitions"]
    assert (behind["lag"], behind["headroom_records"]) == (RECORDS - 100, 100)
    assert behind["lag_seconds"] > 0
    assert 3600 - 600 < behind["headroom_seconds"] + behind["lag_seconds"] < 3600 + 1
    assert (read["lag"], read["lag_seconds"], read["headroom_seconds"]) == (0, 0, None)
    assert console.json("/groups/a%2Fb%20%3Cx%3E.json")["name"] == "a/b <x>"


def test_the_bucket_has_its_segments_on_a_time_axis(console: Console) -> None:
    found = console.json("/tier.json?topic=orders")
    (row,) = found["topics"]
    lanes = found["axis"]["lanes"]
    assert [lane["partition"] for lane in lanes] == [0, 1]
    segments = [one for lane in lanes for one in lane["segments"]]
    assert sum(one["records"] for one in segments) == row["records"] > RECORDS
    for lane in lanes:
        assert lane["segments"][0]["first"] == 0
        ends = [box["x"] + box["width"] for box in lane["boxes"]]
        assert all(0 <= end <= 1000.1 for end in ends)
        assert ends == sorted(ends)


def test_the_bucket_shows_the_manifest_of_each_partition(console: Console) -> None:
    found = console.json("/tier.json?topic=orders")
    assert [one["partition"] for one in found["manifests"]] == [0, 1]
    for one, lane in zip(found["manifests"], found["axis"]["lanes"], strict=True):
        assert one["tiered_end"] == lane["segments"][-1]["last"] + 1
        assert (one["node_id"], one["archives"]) == (1, 0)
        assert one["version"] >= lane["count"] // 2
        assert abs(one["written_ms"] / 1000 - time.time()) < 3600
    tags = Tags(console.get("/tier?topic=orders").text).tags
    assert any(attributes.get("data-label") == "Archive manifests" for _, attributes in tags)
    assert console.json("/tier.json")["manifests"] == []


def test_a_price_file_says_what_the_bucket_costs(
    broker: BrokerProcess, console: Console, tmp_path: Path
) -> None:
    assert console.json("/tier.json")["cost"] is None, "no price, no cost"
    prices = tmp_path / "prices.properties"
    prices.write_text("storage.gb.month = 2500\ncurrency = <EUR>\n")
    options = ("--tier", broker.bucket_url, "--prices", str(prices))
    with console_process(tmp_path, broker.address, *options) as started:
        found = started.json("/tier.json")
        text = started.get("/tier").text
    month = found["bytes"] / 1e9 * 2500
    assert found["cost"]["month"] == pytest.approx(month)
    assert sum(one["month"] for one in found["topics"]) == pytest.approx(month)
    assert f"{month:,.2f} &lt;EUR&gt;" in text
    assert "2,500 for a GB" in text
    for content, named in (
        ("storage.gb.month=-1", "storage.gb.month='-1'"),
        ("storage.gb.month=inf", "storage.gb.month='inf'"),
        ("currency=EUR", "storage.gb.month=''"),
        ("storage.gb.month=1\nput=1", "'put'"),
    ):
        prices.write_text(content)
        done = strata("console", *options)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert str(prices) in done.stderr
        assert named in done.stderr
    done = strata("console", "--prices", str(tmp_path / "none"))
    assert (done.returncode, str(tmp_path / "none") in done.stderr) == (2, True), done.stderr


def test_a_verification_says_what_it_read(console: Console) -> None:
    token = console.token("/tier")
    answer = console.post("/tier/verify", {"token": token})
    assert (answer.status, answer.headers["location"]) == (303, "/tier")
    deadline = time.monotonic() + TIER_WAIT_S
    while (found := console.json("/tier.json")["verification"])["ended_ms"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert found["is_sound"], found
    assert found["checked"]["segments"] == console.json("/tier.json")["segments"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", ""],
)
def test_a_foreign_host_is_refused(console: Console, host: str) -> None:
    answer = console.get("/topics/orders/messages", host=host)
    assert answer.status == 403
    assert "--allow-host NAME" in answer.text
    assert not {"order", "127.0.0.1", "token"} & set(answer.text.split())
    assert "<" not in answer.text
    assert console.get("/", host=f"localhost:{console.port}").status == 200
    assert console.get("/", host=f"[::1]:{console.port}").status == 200


@pytest.mark.parametrize("token", ["", "0" * 32])
def test_a_form_of_another_page_is_refused(console: Console, token: str) -> None:
    answer = console.post("/tier/verify", {"token": token})
    assert (answer.status, "not of a page of this console" in answer.text) == (400, True)
    good = console.token("/tier")
    for headers in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}):
        assert console.post("/tier/verify", {"token": good}, **headers).status == 400
    assert console.request("DELETE", "/topics/orders").status == 400
    large = console.post("/tier/verify", {"token": good, "more": "x" * 70_000})
    assert (large.status, "a form of more than 65536 bytes" in large.text) == (400, True)


def test_a_slow_reader_and_many_pages_hold_up_no_other_page(console: Console) -> None:
    """Clients that send half a request, or do not read, take connections; the others' pages come meanwhile."""
    stuck = []
    try:
        for number in range(20):
            one = socket.create_connection(("127.0.0.1", console.port))
            text = (
                b"GET /settings HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20
                if number % 2
                else b"GET /"
            )
            one.sendall(text)
            stuck.append(one)
        with ThreadPoolExecutor(8) as pool:
            heavy = [
                pool.submit(console.get, "/topics/orders/messages?limit=500&q=nowhere")
                for _ in range(6)
            ]
            assert console.get("/quorum").status == 200
            assert {one.result().status for one in heavy} == {200}
    finally:
        for one in stuck:
            one.close()


def test_without_a_bucket_the_page_says_how_to_name_it(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with console_process(tmp_path, broker.address) as started:
        text = started.get("/tier").text
        assert f"strata console --tier '{broker.bucket_url}'" in text
        found = started.json("/topics/orders/messages.json?from=beginning&limit=1&partition=0")
        assert found["records"][0]["from"] == "bucket, by the broker"
        assert started.json("/topics/orders.json")["tiered_bytes"] is None


def test_a_bucket_that_is_away_leaves_the_other_pages(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    url = (tmp_path / "nothing-here").as_uri()
    with console_process(tmp_path, broker.address, "--tier", url) as started:
        answer = started.get("/tier")
        assert answer.status == 503
        assert url in answer.text
        found = started.json("/topics/orders.json")
        assert found["records"] == 2 * RECORDS
        assert url in found["bucket_error"]


def test_without_a_broker_each_page_says_so_until_there_is_one(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker")
    with console_process(tmp_path / "console", broker.address) as started:
        answer = started.get("/topics")
        assert answer.status == 503
        assert f"start the brokers of {broker.address}" in answer.text
        try:
            broker.start()
            assert started.get("/topics").status == 200
            broker.kill()
            assert started.get("/groups/g").status == 503
            broker.start()
            assert started.get("/topics").status == 200
        finally:
            if broker.process is not None and broker.process.poll() is None:
                broker.kill()
