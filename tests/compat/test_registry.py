"""A real schema registry (Apicurio, which speaks Confluent's API), asked by `strata consume`.

Method: schemas with references are registered over HTTP; records are framed as Confluent's serializers do.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer
from tests.compat.tools import fetched, java
from tests.integration.server_process import Server, strata

from stratalog.adapters.free_ports import free_ports

VERSION = "2.6.13.Final"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
START_S = 600
TIMEOUT_S = 60

pytestmark = [pytest.mark.big, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    words = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", "-DoutputDirectory=."]
    place = fetched(
        f"apicurio-{VERSION}",
        words,
        lambda archive, root: ["tar", "xzf", str(archive), "-C", str(root)],
    )
    (port,) = free_ports(1)
    output = tmp_path_factory.mktemp("apicurio") / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [
                java(),
                "-Xmx512m",
                "-Dquarkus.http.host=127.0.0.1",
                f"-Dquarkus.http.port={port}",
                "-jar",
                str(place / f"apicurio-registry-app-{VERSION}-runner.jar"),
            ],
            stdout=out,
            stderr=out,
        )
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urlopen(f"{url}/subjects", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, output.read_text()
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.5)
        yield url
    finally:
        process.kill()
        process.wait(TIMEOUT_S)


def register(url: str, subject: str, text: str, kind: str = "AVRO", **more: Any) -> int:
    body = json.dumps({"schema": text, "schemaType": kind, **more}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = Request(f"{url}/subjects/{subject}/versions", body, headers, method="POST")
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        return int(json.load(answer)["id"])


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\x00" + schema_id.to_bytes(4, "big") + data


MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [{"name": "cents", "type": "int"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "cost", "type": "shop.Money"}],
}
PROTO = 'syntax = "proto3"; package shop; import "money.proto"; message Sale { Price price = 1; }'
NOTE = '{"$schema": "http://json-schema.org/draft-07/schema#", "title": "Note", "type": "object"}'
MONEY_PROTO = 'syntax = "proto3"; package shop; message Price { int32 cents = 1; }'


def test_values_of_each_kind_are_decoded(registry: str, tmp_path: Path) -> None:
    register(registry, "money", json.dumps(MONEY))
    register(registry, "money.proto", MONEY_PROTO, "PROTOBUF")
    avro = register(
        registry,
        "order-value",
        json.dumps(ORDER),
        references=[{"name": "shop.Money", "subject": "money", "version": 1}],
    )
    proto = register(
        registry,
        "sale-value",
        PROTO,
        "PROTOBUF",
        references=[{"name": "money.proto", "subject": "money.proto", "version": 1}],
    )
    text = register(registry, "note-value", NOTE, "JSON")
    out = BytesIO()
    named: dict[str, Any] = {}
    parse_schema(MONEY, named_schemas=named)
    schemaless_writer(out, parse_schema(ORDER, named_schemas=named), {"cost": {"cents": 1250}})
    values = [
        framed(avro, out.getvalue()),
        framed(proto, b"\x00\x0a\x03\x08\xe2\x09"),
        framed(text, b'{"said": "hello"}'),
        framed(999_999, b"x"),
    ]
    with Server(tmp_path, ("auto.create.topics.enable=true",)) as server:
        producer = Producer({"bootstrap.servers": server.address, "log_level": 0})
        for value in values:
            producer.produce("kinds", value)
        assert producer.flush(TIMEOUT_S) == 0
        words = ("consume", "kinds", "--from", "beginning", "--until-end", "--json")
        done = strata(*words, "--registry", registry, "-b", server.address)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row.get("value") for row in rows[:3]] == [
        {"cost": {"cents": 1250}},
        {"price": {"cents": 1250}},
        {"said": "hello"},
    ]
    assert "the registry has no schema 999999" in done.stderr
