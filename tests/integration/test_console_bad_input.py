"""The web console beside things that go wrong: each gives a page that names thing and remedy, and the console lives on.

Without a broker, a wrong Host, a wrong token: `test_console.py`. Wrong logins: `test_console_login.py`.
"""

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
import pytest
from tests.broker_process import BrokerProcess
from tests.compat.object_servers import ENVIRONMENT, S3Server, s3_server
from tests.integration.console_cluster import RECORDS, filled_broker
from tests.integration.console_process import Answer, Console, console_process
from tests.integration.server_process import strata
from tests.integration.test_bad_bucket import answering

from stratalog.adapters.free_ports import free_ports
from stratalog.adapters.network import TcpNetwork
from stratalog.cli.shared.bucket import opened
from stratalog.client.aio import Client
from stratalog.tier.bucket.identity import claim_bucket
from stratalog.wire.records import BatchBuilder

OLDEST = "/topics/orders/messages?from=beginning&limit=5&partition=0"
BUILD_S = 600
"""On a new machine MinIO is compiled first, which takes minutes."""
ALL = {"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::*"}
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with filled_broker(tmp_path_factory.mktemp("bad_input")) as started:
        yield started


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with the bucket `history`, which a cluster owns."""
    with s3_server("minio", tmp_path_factory.mktemp("minio")) as server:
        client_of(server, "s3").create_bucket(Bucket="history")
        with patch.dict(os.environ, ENVIRONMENT):
            claim_bucket(opened(server.url("history")), "a-cluster", 0)
        yield server


def client_of(server: S3Server, service: str) -> Any:
    key, secret = server.keys
    return boto3.client(
        service,
        endpoint_url=server.endpoint,
        region_name=server.region,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )


def session_keys(server: S3Server, *statements: dict[str, str]) -> dict[str, str]:
    """The environment with keys of a session that has the rights of these statements alone."""
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
    answer = client_of(server, "sts").assume_role(
        RoleArn="arn:minio:any:::role", RoleSessionName="console", Policy=policy
    )
    found = answer["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
        "AWS_SESSION_TOKEN": found["SessionToken"],
    }


def produce(address: str, topic: str, value: bytes) -> None:
    async def send() -> None:
        async with await Client.connect(TcpNetwork(), address) as client:
            builder = BatchBuilder()
            builder.add(None, value, int(time.time() * 1000))
            await client.produce(topic, 0, builder.build())

    asyncio.run(send())


def follow_link(page: Answer) -> str:
    found = re.search(r'id="follow" data-next="([^"]+)"', page.text)
    assert found
    return unescape(found[1])


def test_a_registry_that_is_away_costs_one_question_a_page(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    for _ in range(2):
        produce(broker.address, "odd.json", b"\0\0\0\0\7some Avro")
    url = f"http://127.0.0.1:{port}"
    with console_process(tmp_path, broker.address, "--registry", url) as console:
        found = console.json("/topics/odd.json/messages.json")["records"]
        problems = [one["value"]["problem"] for one in found]
        assert problems[0].startswith(url)
        assert problems[0].endswith("check --registry, and that the registry runs")
        assert problems[1] == "the registry was not asked again for this page"
        assert {one["value"]["text"] for one in found} == {r"\x00\x00\x00\x00\x07some Avro"}


def test_a_topic_that_is_deleted_while_it_is_followed(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with console_process(tmp_path, broker.address) as console:
        following = follow_link(console.get("/topics/empty/messages"))
        assert console.get(following).status == 200
        assert strata("topic", "delete", "empty", "-b", broker.address).returncode == 0
        answer = console.get(following)
        assert answer.status == 404
        assert "topic empty does not exist" in answer.text
        assert "see the topics" in answer.text
        assert console.get("/topics").status == 200


@pytest.fixture
def refused(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Console]:
    """A console whose keys have no right to the bucket that the broker uses."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "known")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    with answering(403, DENIED) as store:
        url = f"s3://history?endpoint={store.url}"
        with console_process(tmp_path, broker.address, "--tier", url) as started:
            yield started


def test_a_bucket_without_rights_is_read_by_the_broker(refused: Console) -> None:
    answer = refused.get("/tier")
    assert answer.status == 503
    for text in ("s3://history", "AccessDenied", "check the URL, the keys and their rights"):
        assert text in answer.text
    assert "AccessDenied" in refused.json("/topics/orders.json")["bucket_error"]
    found = refused.json(OLDEST.replace("messages?", "messages.json?"))
    assert {one["from"] for one in found["records"]} == {"bucket, by the broker"}
    assert "AccessDenied" in found["bucket_error"]
    page = refused.get(OLDEST).text
    assert "The console cannot read the bucket, so the broker does" in page
    assert "start the brokers" not in page
    assert "planted" not in page
    assert refused.json("/topics.json")["topics"]


@pytest.mark.timeout(BUILD_S)
@pytest.mark.parametrize("denied", ["s3:ListBucket", "s3:GetObject"])
def test_a_bucket_without_a_right_is_in_the_overview(
    broker: BrokerProcess, minio: S3Server, tmp_path: Path, denied: str
) -> None:
    url = minio.url("history")
    keys = session_keys(minio, ALL, {**ALL, "Effect": "Deny", "Action": denied})
    with console_process(tmp_path, broker.address, "--tier", url, environ=keys) as console:
        (wrong,) = console.json("/overview.json")["wrong"]
        assert wrong["what"].startswith("the console cannot read the bucket: ")
        assert wrong["what"].count(url) == 1
        assert "AccessDenied" in wrong["what"]
        assert "\n" not in wrong["what"]
        assert wrong["where"] == "/tier"
        assert "keys and their rights" in wrong["remedy"]
        assert wrong["remedy"] in console.get("/").text


@pytest.mark.timeout(BUILD_S)
def test_a_bucket_with_all_rights_is_not_in_the_overview(
    broker: BrokerProcess, minio: S3Server, tmp_path: Path
) -> None:
    keys, url = session_keys(minio, ALL), minio.url("history")
    with console_process(tmp_path, broker.address, "--tier", url, environ=keys) as console:
        assert console.json("/overview.json")["wrong"] == []
        assert console.json("/tier.json")["topics"] == []


def test_a_bucket_that_the_broker_lost_is_named_until_it_is_back(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    oldest = OLDEST.replace("partition=0", "partition=1")  # the broker keeps what it has read
    bucket = Path(broker.bucket_url.removeprefix("file://"))
    with console_process(tmp_path, broker.address) as console:
        bucket.rename(bucket.with_name("away"))
        try:
            answer = console.get(oldest)
            assert answer.status in {502, 503}
            assert "orders-1" in answer.text
            assert "log" in answer.text
            newest = console.json("/topics/orders/messages.json?limit=5&partition=1")
            assert newest["records"][0]["offset"] == RECORDS - 1
        finally:
            bucket.with_name("away").rename(bucket)
        assert len(console.json(oldest.replace("messages?", "messages.json?"))["records"]) == 5
