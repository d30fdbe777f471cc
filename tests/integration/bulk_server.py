"""A server of OpenSearch's bulk requests that follows a rule for each, also for failures that a real one rarely has.

In: rules, each for one request. Out: the requests that it received, and its documents by index and id. It has no
mappings and no searches; `tests/compat/test_opensearch.py` has the real one.
"""

import json
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Rule = Callable[[list[str]], tuple[int, list[int]] | None]
"""Ids of a bulk request -> the answer's status and each item's. None: close the connection within the headers."""


def taken(ids: list[str]) -> tuple[int, list[int]]:
    return 200, [200] * len(ids)


def whole(status: int) -> Rule:
    return lambda ids: (status, [status] * len(ids))


def each(**statuses: int) -> Rule:
    """Return a rule of one status for each id, by the last number in the id: `each(_3=429)`."""
    return lambda ids: (200, [statuses.get(f"_{one.rpartition('-')[2]}", 200) for one in ids])


def hang_up(ids: list[str]) -> None:
    return None


@dataclass
class BulkServer:
    """Each request uses up one of `rules`; without a rule, all is accepted. More bytes than `refuse_more_than`: 413."""

    url: str = ""
    rules: list[Rule] = field(default_factory=list)
    refuse_more_than: int = 1 << 30
    authorization: str | None = None
    shards: dict[str, str] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    requests: list[list[str]] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any] | None:
        index = path.split("/")[1]
        with self._guard:
            self.seen.append(f"{method} {path}")
        if "/_bulk" in path:
            return self._bulk(index, body)
        if path.endswith("/_refresh"):
            return 200, {}
        if method == "PUT" and "/_settings" not in path:
            asked = json.loads(body)["settings"]
            self.shards[index] = asked.get("index.number_of_shards", "1")
        elif index not in self.shards:
            return 404, {"error": {"type": "index_not_found_exception", "reason": "no such index"}}
        return 200, {index: {"settings": {"index.number_of_shards": self.shards[index]}}}

    def _bulk(self, index: str, body: bytes) -> tuple[int, Any] | None:
        lines = body.split(b"\n")
        ids = [json.loads(line)["index"]["_id"] for line in lines[:-1:2]]
        with self._guard:
            self.requests.append(ids)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            rule = self.rules.pop(0) if self.rules else taken
        try:
            if len(body) > self.refuse_more_than:
                return 413, {"error": "too large"}
            answer = rule(ids)
        finally:
            with self._guard:
                self._at_once -= 1
        if answer is None:
            return None
        status, statuses = answer
        if status != 200:
            return status, {"error": {"type": "rejected", "reason": "not now"}}
        items = []
        for one, source, of_item in zip(ids, lines[1::2], statuses, strict=True):
            error = {"error": {"type": "refused", "reason": "by a rule"}} if of_item > 299 else {}
            items.append({"index": {"status": of_item, **error}})
            if of_item < 300:
                self.documents[index][one] = json.loads(source)
        return 200, {"errors": any(s > 299 for s in statuses), "items": items}


@contextmanager
def bulk_server(certificates: Path | None = None) -> Iterator[BulkServer]:
    """Serve on 127.0.0.1; with TLS if there is a directory of `public.crt` and `private.key`."""
    made = BulkServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            said: tuple[int, Any] | None = (401, {"error": "Unauthorized"})
            if made.authorization in {None, self.headers.get("Authorization")}:
                said = made.answer(self.command, self.path, body)
            if said is None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\ncont")
                self.close_connection = True
                return
            answer = json.dumps(said[1]).encode()
            self.send_response(said[0])
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST = handle_one  # noqa: N815 - http.server's names

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        scheme = "http"
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "public.crt", certificates / "private.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
            scheme = "https"
        made.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join(30)
