"""Records written with a schema registry, in `strata consume` and in the web console.

The registry is a small HTTP server that answers as Confluent's does; tests/compat/test_registry.py asks a real one.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_writer
from tests.integration.console_process import console_process
from tests.integration.server_process import Server, strata

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "by", "type": "string"}],
}
SCHEMAS = {5: {"schema": json.dumps(ORDER)}, 6: {"schema": '"string"'}}


class Registry(BaseHTTPRequestHandler):
    """Answers /schemas/ids/N to the user `reader`."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Basic cmVhZGVyOnNlY3JldA=="
        found = SCHEMAS.get(int(self.path.rpartition("/")[2])) if known else None
        body = json.dumps(found or {"error_code": 40403}).encode()
        self.send_response(200 if found else 404 if known else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://reader:secret@127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema), value)
    return b"\x00" + schema_id.to_bytes(4, "big") + out.getvalue()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("registry"), ("auto.create.topics.enable=true",)) as one:
        producer = Producer({"bootstrap.servers": one.address, "log_level": 0})
        order = framed(5, ORDER, {"id": 1, "by": "<Alice>"})
        for key, value in (
            (framed(6, "string", "k1"), order),
            (b"plain", b"text"),
            (b"unknown", b"\x00\x00\x00\x00\x09x"),
            (b"broken", order + b"more"),
        ):
            producer.produce("orders", value, key)
        assert producer.flush(60) == 0
        yield one


READ = ("consume", "orders", "--from", "beginning", "--until-end")


def test_consume_prints_values_as_json(server: Server, registry: str) -> None:
    words = (*READ, "--registry", registry, "-b", server.address)
    done = strata(*words, "--key-separator", " ")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == '"k1" {"id": 1, "by": "<Alice>"}'
    assert lines[1] == "plain text"
    assert (
        "1 key(s) or value(s) are printed as they are: the registry has no schema 9" in done.stderr
    )
    assert "shop.Order: 4 bytes are left over" in done.stderr
    rows = [json.loads(line) for line in strata(*words, "--json").stdout.splitlines()]
    assert (rows[0]["value"], rows[0]["value_schema_id"]) == ({"id": 1, "by": "<Alice>"}, 5)
    assert (rows[0]["key"], rows[0]["key_schema_id"]) == ("k1", 6)
    assert rows[1]["value"] == "text"
    assert "value_schema_id" not in rows[2]


def test_consume_says_what_is_wrong_with_a_registry(server: Server, registry: str) -> None:
    unknown = registry.replace("secret", "wrong")
    for url, said in (
        (unknown, "the registry refuses /schemas/ids/6: status 401"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1/schemas/ids/6: "),
        ("ftp://there", "--registry: this is not accepted; accepted: http://"),
    ):
        done = strata(*READ, "--registry", url, "-b", server.address)
        assert done.returncode == 2, done.stdout
        assert len(done.stderr.splitlines()) <= 2, done.stderr
        assert said in done.stderr, done.stderr
        assert "wrong" not in done.stderr, "a password is never shown"


def test_the_console_decodes_and_escapes(server: Server, registry: str, tmp_path: Path) -> None:
    with console_process(tmp_path, server.address, "--registry", registry) as console:
        page = "/topics/orders/messages"
        rows = {
            row["offset"]: row for row in console.json(f"{page}.json?from=beginning")["records"]
        }
        assert json.loads(rows[0]["value"]["text"]) == {"id": 1, "by": "<Alice>"}
        assert rows[0]["value"]["schema"] == "shop.Order (avro, schema 5)"
        assert rows[1]["value"]["text"] == "text"
        assert rows[2]["value"]["problem"] == "the registry has no schema 9"
        assert "left over" in rows[3]["value"]["problem"]
        html = console.get(f"{page}?from=beginning").text
        assert "shop.Order (avro, schema 5)" in html
        assert "&lt;Alice&gt;" in html
        assert "<Alice>" not in html
        raw = console.json(f"{page}.json?from=beginning&format=hex")["records"][0]["value"]
        assert raw["form"] == "hex"
        assert "schema" not in raw


def test_a_registry_that_is_away_costs_a_page_one_wait(server: Server, tmp_path: Path) -> None:
    with console_process(tmp_path, server.address, "--registry", "http://127.0.0.1:1") as console:
        rows = console.json("/topics/orders/messages.json?from=beginning")["records"]
        problems = [
            one["problem"] for row in rows for one in (row["key"], row["value"]) if "problem" in one
        ]
        assert problems[0].startswith("http://127.0.0.1:1/schemas/ids/6: ")
        assert set(problems[1:]) == {"the registry was not asked again for this page"}
        assert rows[1]["value"]["text"] == "text"
