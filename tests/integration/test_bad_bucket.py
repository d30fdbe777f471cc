"""A `tier.url` that cannot work ends the server and every command with one line, for every kind of mistake."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.integration.server_process import Server, strata, strata_process

from stratalog.adapters.bucket_url import parse_bucket_url
from stratalog.adapters.s3_bucket import S3Bucket
from stratalog.errors import Unavailable, UserError
from stratalog.testing import TemporaryBroker

REFUSED = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message>'
    "<AWSAccessKeyId>planted</AWSAccessKeyId><Token-0>planted</Token-0></Error>"
)
KEYS = {"AWS_ACCESS_KEY_ID": "testkey", "AWS_SECRET_ACCESS_KEY": "planted"}


class Answering(ThreadingHTTPServer):
    """A server that gives one answer to every request, and counts the requests."""

    daemon_threads = True

    def __init__(self, status: int, body: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body, self.requests = status, body.encode(), 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Answering

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.server.body)

    do_GET = do_PUT = do_HEAD = do_POST = _answer  # noqa: N815 - the library's names

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def answering(status: int, body: str) -> Iterator[Answering]:
    server = Answering(status, body)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    """Run a stand-in for a cloud's metadata service, in an environment without keys."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)
    with answering(404, "") as service:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.url)  # obstore's
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url)  # boto3's
        yield service


def bad_urls(closed_port: int, refusing: str) -> list[tuple[str, dict[str, str], str]]:
    return [
        ("s3://b/p?foo=1", KEYS, "s3://b/p: 'foo' is none of"),
        ("s3:///p", KEYS, "s3:///p: a bucket is written"),
        ("s3://b/p", {}, "no keys are found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        (
            f"s3://b/p?endpoint={refusing}",
            KEYS,
            "403 Forbidden InvalidAccessKeyId: No such key.; the keys are from ",
        ),
        (
            f"s3://b/p?endpoint=http://127.0.0.1:{closed_port}",
            KEYS,
            "cannot be reached: Connection refused",
        ),
    ]


def one_line(done_out: str, done_code: int) -> str:
    assert done_code == 2, done_out
    *before, line = done_out.splitlines()
    assert all("[info" in other for other in before), done_out
    assert line.startswith("strata: ")
    assert "planted" not in done_out
    assert "<" not in line
    return line


def test_a_server_with_a_bad_url_ends_in_one_line(
    tmp_path: Path, metadata: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(403, REFUSED) as refusing, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # without a listener, and no other test gets the port
        cases = bad_urls(closed.getsockname()[1], refusing.url)
        cases.append(("file:///dev/null/x", {}, "Not a directory"))
        for number, (url, keys, named) in enumerate(cases):
            with monkeypatch.context() as environment:
                for name, value in keys.items():
                    environment.setenv(name, value)
                place = tmp_path / str(number)
                done = strata_process(
                    *("server", "--override", "listeners=PLAINTEXT://127.0.0.1:0"),
                    *("--override", f"log.dirs={place}", "--override", f"tier.url={url}"),
                )
            line = one_line(done.stdout + done.stderr, done.returncode)
            assert line.startswith("strata: tier.url: ")
            assert named in line
    assert metadata.requests == 0


@pytest.mark.parametrize(
    "words", [("tier", "list"), ("tier", "sweep"), ("tier", "check"), ("restore",)]
)
def test_a_command_with_a_bad_url_ends_in_one_line(
    words: tuple[str, ...], metadata: Answering
) -> None:
    with answering(403, REFUSED) as refusing, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # without a listener, and no other test gets the port
        for url, keys, named in bad_urls(closed.getsockname()[1], refusing.url)[:4]:
            done = strata(*words, url, environ=keys)
            assert named in one_line(done.stderr, done.returncode)
    assert metadata.requests == 0


def test_the_machines_role_is_requested_only_if_the_url_asks_for_that(metadata: Answering) -> None:
    done = strata("tier", "list", "s3://b/p")
    assert (done.returncode, metadata.requests) == (2, 0)
    done = strata("tier", "list", "s3://b/p?credentials=instance")
    assert metadata.requests
    line = one_line(done.stderr, done.returncode)
    assert "the keys are from the machine's role (credentials=instance)" in line or "404" in line


def test_calls_through_boto3_never_request_the_machines_role(
    metadata: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")  # obstore's: boto3 looks for keys nevertheless
    monkeypatch.setenv("HOME", "/nonexistent")
    with (
        closing(S3Bucket(parse_bucket_url(f"s3://b?endpoint={metadata.url}"))) as bucket,
        pytest.raises(Unavailable, match="Unable to locate credentials"),
    ):
        bucket.create()
    assert metadata.requests == 0


def test_a_refused_start_leaves_no_thread_of_the_tier() -> None:
    before = set(threading.enumerate())
    with pytest.raises(UserError, match=r"tier\.url: s3://b: no keys are found"):
        TemporaryBroker({"tier.url": "s3://b"}).start()
    left = set(threading.enumerate()) - before
    assert not [thread.name for thread in left if "tier" in thread.name]


def test_a_cluster_that_has_served_starts_though_its_bucket_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(tmp_path) as server:
        done = strata("topic", "create", "t", "-b", server.address)
        assert done.returncode == 0, done.stderr
        assert server.stop() == 0
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with (
        answering(403, REFUSED) as refusing,
        Server(tmp_path, [f"tier.url=s3://b/p?endpoint={refusing.url}"]) as server,
    ):
        done = strata("produce", "t", "-b", server.address, stdin="1\n")
        assert done.returncode == 0, done.stderr
        assert "bucket not reached yet" in server.output.read_text()
        assert server.stop() == 0
