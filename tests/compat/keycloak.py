"""A real OAuth server: Keycloak, from Maven, in a process of its own.

In: a directory. Out: a server of https on 127.0.0.1, its realms, their clients by id and secret, tokens and keys. It
ends only the process that it started. Skips without Java or Maven.
"""

import json
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.compat.tools import fetched, java, java_environment

from stratalog.adapters.free_ports import free_ports
from stratalog.testing.certificates import Authority

VERSION = "26.0.0"
ARTIFACT = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:tar.gz"
START_S, STOP_S, ANSWER_S = 900, 60, 60
SECRET = "planted-secret"
ADMIN = "planted-password"
AUDIENCE = "kafka"


@dataclass(frozen=True)
class Keycloak:
    """A server at `url` whose certificate `authority` has signed."""

    url: str
    authority: Path

    def ask(self, path: str, body: Any = None, method: str | None = None) -> Any:
        """Ask the administration; return its answer."""
        words = {"grant_type": "password", "client_id": "admin-cli", "username": "admin"}
        token = self.posted("master", words | {"password": ADMIN})["access_token"]
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        return self.opened(Request(f"{self.url}/admin/realms{path}", data, headers, method=method))

    def posted(self, realm: str, form: dict[str, str]) -> Any:
        """Ask a realm's token endpoint."""
        return self.opened(Request(self.token_url(realm), urlencode(form).encode()))

    def opened(self, request: Request) -> Any:
        context = ssl.create_default_context(cafile=self.authority)
        with urlopen(request, context=context, timeout=ANSWER_S) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def issuer(self, realm: str) -> str:
        return f"{self.url}/realms/{realm}"

    def token_url(self, realm: str) -> str:
        return f"{self.issuer(realm)}/protocol/openid-connect/token"

    def keys_url(self, realm: str) -> str:
        return f"{self.issuer(realm)}/protocol/openid-connect/certs"

    def add_realm(self, realm: str, lifetimes_s: dict[str, int]) -> None:
        """Create a realm, and clients with `SECRET` whose tokens live so long."""
        self.ask("", {"realm": realm, "enabled": True})
        audience = {
            "name": AUDIENCE,
            "protocol": "openid-connect",
            "protocolMapper": "oidc-audience-mapper",
            "config": {"included.custom.audience": AUDIENCE, "access.token.claim": "true"},
        }
        for name, lifetime_s in lifetimes_s.items():
            added = {
                "clientId": name,
                "secret": SECRET,
                "serviceAccountsEnabled": True,
                "publicClient": False,
                "attributes": {"access.token.lifespan": str(lifetime_s)},
                "protocolMappers": [audience],
            }
            self.ask(f"/{realm}/clients", added)

    def rotate(self, realm: str) -> None:
        """Sign with a new key from now on, and forget the others."""
        kind = "org.keycloak.keys.KeyProvider"
        old = [
            one
            for one in self.ask(f"/{realm}/components?type={kind}")
            if one["providerId"] == "rsa-generated"
        ]
        provider = {
            "name": f"rotated-{len(old)}",
            "providerId": "rsa-generated",
            "providerType": kind,
            "parentId": self.ask(f"/{realm}")["id"],
            "config": {"priority": ["200"], "algorithm": ["RS256"]},
        }
        self.ask(f"/{realm}/components", provider)
        for one in old:
            self.ask(f"/{realm}/components/{one['id']}", method="DELETE")

    def token(self, realm: str, client: str) -> str:
        """Return a new token of client credentials."""
        form = {"grant_type": "client_credentials", "client_id": client, "client_secret": SECRET}
        found: str = self.posted(realm, form)["access_token"]
        return found


@contextmanager
def running_keycloak(place: Path) -> Iterator[Keycloak]:
    """Run a server with no realm but its own, below `place`."""
    words = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", "-DoutputDirectory=."]
    kept = fetched(
        f"keycloak-{VERSION}",
        words,
        lambda archive, root: ["tar", "xzf", str(archive), "-C", str(root)],
    )
    home = place / "keycloak"
    shutil.copytree(kept / f"keycloak-{VERSION}", home)  # its start writes there
    authority = Authority(place / "authority")
    keys = authority.issue("keycloak")
    plain, secured = free_ports(2)
    ports = ("--http-host=127.0.0.1", f"--http-port={plain}", f"--https-port={secured}")
    files = (
        f"--https-certificate-file={keys.certificate}",
        f"--https-certificate-key-file={keys.key}",
    )
    environ = java_environment() | {
        "JAVA": java(),
        "JAVA_OPTS_APPEND": "-Xmx512m",
        "KC_BOOTSTRAP_ADMIN_USERNAME": "admin",
        "KC_BOOTSTRAP_ADMIN_PASSWORD": ADMIN,
        "KC_RUN_IN_CONTAINER": "true",  # the script becomes Java, so that its process id is Java's
    }
    output = place / "keycloak.out"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [home / "bin" / "kc.sh", "start-dev", *ports, *files],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environ,
        )
    server = Keycloak(f"https://127.0.0.1:{secured}", authority.certificate)
    try:
        wait_until_open(server, process, output)
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(STOP_S)


def wait_until_open(server: Keycloak, process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Wait until the server answers; its first start builds it."""
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, output.read_text()[-2000:]
        assert time.monotonic() < deadline, output.read_text()[-2000:]
        try:
            server.opened(Request(server.issuer("master")))
        except (URLError, OSError):
            time.sleep(0.5)
        else:
            return
