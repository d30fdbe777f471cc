"""Goal: each request of a blob carries the customer's key of `customer_key_file`, and a wrong key is one line.

Method: a store that speaks as much of Azure's protocol as our calls need, over TLS. As Azure does, it refuses any
request of a blob that names no key, or another one than the blob's. Microsoft's emulator knows no such keys.
"""

import base64
import hashlib
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from stratalog.adapters.object_store import open_store
from stratalog.errors import Unavailable
from stratalog.ports import AlreadyExists
from stratalog.testing.certificates import Authority

RIGHT, WRONG = bytes(range(32)), bytes(32)
MIB = 1 << 20
KEY = ("x-ms-encryption-key", "x-ms-encryption-key-sha256", "x-ms-encryption-algorithm")


class Blobs(ThreadingHTTPServer):
    """Blobs by path, each with the key that its last write named; blocks that no list names yet."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.blobs: dict[str, tuple[str, bytes]] = {}
        self.blocks: dict[str, bytes] = {}
        self.calls: set[str] = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Blobs

    def log_message(self, *_words: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", code: str = "", **headers: str) -> None:
        self.send_response(status)
        if code:
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
        for name, text in (headers | {"Content_Length": str(len(body))}).items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def key(self) -> str | None:
        """Return the key of the request, if it names one as Azure demands it."""
        key, digest, algorithm = (self.headers.get(name, "") for name in KEY)
        right = base64.b64encode(hashlib.sha256(base64.b64decode(key)).digest()).decode()
        return key if key and digest == right and algorithm == "AES256" else None

    def do_PUT(self) -> None:
        body = self.body()
        url = urlsplit(self.path)
        path, words = unquote(url.path), parse_qs(url.query)
        kind, key = words.get("comp", ["put"])[0], self.key()
        self.server.calls.add(kind)
        if key is None:
            self.answer(409, code="BlobUsesCustomerSpecifiedEncryption")
        elif kind == "block":
            self.server.blocks[words["blockid"][0]] = body
            self.answer(201)
        elif self.headers.get("if-none-match") == "*" and path in self.server.blobs:
            self.answer(409, code="BlobAlreadyExists")
        else:
            if kind == "blocklist":
                names = re.findall(r"<\w+>([^<>]+)</\w+>", body.decode())
                body = b"".join(self.server.blocks[name] for name in names)
            self.server.blobs[path] = key, body
            self.answer(201, ETag='"1"')

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def do_GET(self) -> None:
        self.server.calls.add(self.command)
        found = self.server.blobs.get(unquote(urlsplit(self.path).path))
        if found is None:
            self.answer(404, code="BlobNotFound")
        elif found[0] != self.key():
            self.answer(409, code="BlobUsesCustomerSpecifiedEncryption")
        else:
            content, status, more = found[1], 200, {}
            wanted = self.headers.get("x-ms-range") or self.headers.get("range")
            if wanted:
                first, last = map(int, wanted.removeprefix("bytes=").split("-"))
                more = {"Content_Range": f"bytes {first}-{last}/{len(content)}"}
                content, status = content[first : last + 1], 206
            date = "Fri, 27 Nov 2026 08:00:00 GMT"
            self.answer(status, content, ETag='"1"', Last_Modified=date, **more)

    do_HEAD = do_GET  # noqa: N815 - http.server's name


@contextmanager
def azure(place: Path) -> Iterator[tuple[Blobs, str]]:
    """Yield the store and the beginning of its URL."""
    authority = Authority(place / "authority")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("store").pem)
    server = Blobs()
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    endpoint = quote(f"https://127.0.0.1:{server.server_port}/account", safe="")
    try:
        yield (
            server,
            f"az://tier/p?endpoint={endpoint}&account_name=account&ca_file={authority.certificate}",
        )
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_every_request_of_a_blob_names_the_customers_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(b"invented" * 8).decode())
    keys = {name: tmp_path / f"{name}.key" for name in ("right", "wrong")}
    keys["right"].write_bytes(RIGHT)
    keys["wrong"].write_bytes(WRONG)
    with azure(tmp_path) as (server, url):
        store = open_store(f"{url}&customer_key_file={keys['right']}")
        pieces = [bytes([number]) * MIB for number in range(12)]
        store.put("small", [b"books"])
        store.put("large", iter(pieces))
        store.put_if_absent("once", b"first")
        with pytest.raises(AlreadyExists):
            store.put_if_absent("once", b"second")
        assert store.get("small") == b"books"
        assert store.size("large") == 12 * MIB
        assert store.get("large") == b"".join(pieces)
        assert store.get_range("large", 5 * MIB - 1, 2) == b"\x04\x05"
        assert server.calls >= {"put", "block", "blocklist", "GET", "HEAD"}
        assert {key for key, _ in server.blobs.values()} == {base64.b64encode(RIGHT).decode()}
        for more, place in (
            (
                f"&customer_key_file={keys['wrong']}",
                f", and the customer's key from {keys['wrong']}",
            ),
            ("", "the keys are from AZURE_STORAGE_ACCOUNT_KEY"),
        ):
            stranger = open_store(f"{url}{more}")
            with pytest.raises(Unavailable) as refused:
                stranger.get("small")
            assert "409 Conflict BlobUsesCustomerSpecifiedEncryption" in str(refused.value)
            assert place in str(refused.value)
            assert base64.b64encode(WRONG).decode() not in str(refused.value)
            with pytest.raises(Unavailable, match="409"):
                stranger.size("small")
