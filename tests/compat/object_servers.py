"""Real S3 servers for tests: MinIO and versitygw, built once by `go install`, one process and directory each; and
s3s-fs (by `cargo install`), whose put-if-absent lets two writers win.

In: a directory, settings. Out: an endpoint and its keys; also a certificate of an authority of our own, and a proxy
that tears connections. Nothing outlives its `with` block.
"""

import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlencode

from tests.compat.tools import cargo_program, go_program

from stratalog.adapters.free_ports import free_ports

MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
S3S_FS = "s3s-fs@0.14.1"
KEY, SECRET = "stratalog-test", "not-a-secret-of-anyone"
KMS_KEY, KMS_SECRET = "stratalog-kms", b64encode(b"an invented key of just 32 bytes").decode()
"""The one key of MinIO's own key management, by which it encrypts where a request asks for that."""
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
START_TIMEOUT_S = 60


@dataclass
class S3Server:
    """A server on `port`; `start` may be called again after `kill`, with the same data."""

    kind: str
    place: Path
    port: int
    region: str = "us-east-1"
    ca_file: Path | None = None
    domain: str | None = None
    keys: tuple[str, str] = (KEY, SECRET)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.ca_file else 'http'}://127.0.0.1:{self.port}"

    def url(self, bucket: str, prefix: str = "", **settings: str) -> str:
        """Return a URL for `tier.url`; these settings override the server's own."""
        known = {"endpoint": self.endpoint, "region": self.region}
        if self.ca_file:
            known["ca_file"] = str(self.ca_file)
        query = urlencode({n: v for n, v in (known | settings).items() if v}, quote_via=quote)
        return f"s3://{bucket}/{prefix}?{query}" if query else f"s3://{bucket}/{prefix}"

    def start(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        with (self.place.parent / f"{self.kind}-{self.port}.log").open("ab") as output:
            self.process = subprocess.Popen(
                self._command(),
                env=os.environ | self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            assert self.process.poll() is None, f"{self.kind} ended: {output.name}"
            assert time.monotonic() < deadline, f"{self.kind} is not ready: {output.name}"
            time.sleep(0.05)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def _command(self) -> Sequence[str]:
        address = f"127.0.0.1:{self.port}"
        if self.kind == "s3s-fs":
            words = [str(cargo_program(S3S_FS, "binary")), "--host", "127.0.0.1"]
            words += ["--access-key", self.keys[0], "--secret-key", self.keys[1]]
            return [*words, "--port", str(self.port), str(self.place)]
        if self.kind == "minio":
            words = [str(go_program("minio", MINIO)), "server", "--quiet", "--address", address]
            words += ["--certs-dir", str(self.place.parent / "certs")]
            return [*words, str(self.place)]
        words = [str(go_program("versitygw", VERSITYGW)), "--port", address]
        words += ["--region", self.region]
        if self.ca_file:
            certificates = self.place.parent / "certs"
            words += ["--cert", str(certificates / "public.crt")]
            words += ["--key", str(certificates / "private.key")]
        return [*words, "posix", str(self.place)]

    def _environment(self) -> dict[str, str]:
        if self.kind == "minio":
            settings = {
                "MINIO_ROOT_USER": self.keys[0],
                "MINIO_ROOT_PASSWORD": self.keys[1],
                "MINIO_BROWSER": "off",
                "MINIO_REGION": self.region,
                "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{KMS_SECRET}",
            }
            return settings | ({"MINIO_DOMAIN": self.domain} if self.domain else {})
        return {"ROOT_ACCESS_KEY": self.keys[0], "ROOT_SECRET_KEY": self.keys[1]}

    def _is_ready(self) -> bool:
        path = "/minio/health/ready" if self.kind == "minio" else "/"
        context = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None
        try:
            urllib.request.urlopen(self.endpoint + path, timeout=5, context=context).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            return (
                self.kind != "minio"
            )  # the other servers refuse a request without a key, so they are running
        except OSError:
            return False
        return True


@contextmanager
def s3_server(kind: str, place: Path, **settings: object) -> Iterator[S3Server]:
    """Run a server with its data below `place`; skip the test if its program is not available."""
    server = S3Server(kind, place / kind, free_ports(1)[0], **settings)  # type: ignore[arg-type]
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def write_certificates(place: Path) -> Path:
    """Make a certificate authority in `place/ca.pem` (returned) and a server's key pair in `place/certs`."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.now(UTC)

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    def builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("an authority for tests"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = builder("an authority for tests", authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    leaf = builder("127.0.0.1", server).add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
    )
    pem = serialization.Encoding.PEM
    certificates = place / "certs"
    certificates.mkdir(parents=True)
    (place / "ca.pem").write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(pem))
    (certificates / "public.crt").write_bytes(
        leaf.sign(authority, hashes.SHA256()).public_bytes(pem)
    )
    (certificates / "private.key").write_bytes(
        server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return place / "ca.pem"


class TearingProxy:
    """A proxy that forwards connections to a port, and cuts the next `times` answers after `keep` bytes."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._guard = threading.Lock()
        self._times = self._keep = 0
        self.torn = 0
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def tear(self, *, times: int, keep: int) -> None:
        with self._guard:
            self._times, self._keep, self.torn = times, keep, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        with self._guard:
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target), timeout=60)
                with self._guard:
                    self._open |= {near, far}
                for source, sink, answers in ((near, far, False), (far, near, True)):
                    threading.Thread(
                        target=self._pass_on, args=(source, sink, answers), daemon=True
                    ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        kept = 0
        tearing = False
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and not tearing:
                    with self._guard:
                        if self._times > 0:
                            self._times -= 1
                            tearing = True
                if tearing:
                    sink.sendall(data[: self._keep - kept])
                    kept += len(data)
                    if kept >= self._keep:
                        self.torn += 1
                        break
                else:
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        if answers:
            with self._guard:
                self._open -= {source, sink}
            source.close()
            sink.close()
