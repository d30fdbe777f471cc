"""Azure Blob Storage in Microsoft's own emulator (Azurite): our store, its check, and a broker over it.

`./test --all tests/compat/test_azure.py` runs it; npm fetches Azurite once (365 MB with what it needs).
"""

import base64
import hashlib
import hmac
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.compat.tiering_broker import FINDINGS, tiers_what_it_is_given
from tests.compat.tools import node, npm_installed
from tests.integration.server_process import strata
from tests.store_contract import comes_back_whole_and_in_ranges, exactly_one_wins

from stratalog.adapters.free_ports import free_ports
from stratalog.adapters.object_store import open_store
from stratalog.errors import Unavailable
from stratalog.ports import AlreadyExists

pytestmark = [pytest.mark.big, pytest.mark.xdist_group("object_stores"), pytest.mark.timeout(400)]

AZURITE = "azurite@3.37.0"
ACCOUNT = "devstoreaccount1"
WAIT_S = 60
MIB = 1 << 20


def made_up_key() -> str:
    return base64.b64encode(
        b"an invented key, 64 bytes or so, for the account of this test only"
    ).decode()


def create_container(port: int, key: str, name: str) -> None:
    """Create a container with a request signed by the account's key, as Azure requires."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{header}:{value}" for header, value in headers.items())]
    lines += [f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container"]
    digest = hmac.new(base64.b64decode(key), "\n".join(lines).encode(), hashlib.sha256).digest()
    signature = base64.b64encode(digest).decode()
    headers |= {"Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("PUT", f"/{ACCOUNT}/{name}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an empty container; replace `{name}` in it by a prefix."""
    program = npm_installed(AZURITE) / "azurite" / "dist" / "src" / "blob" / "main.js"
    port, key = free_ports(1)[0], made_up_key()
    place = tmp_path_factory.mktemp("azurite")
    words = ["--silent", "--disableTelemetry", "--skipApiVersionCheck", "--blobHost", "127.0.0.1"]
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AZURITE_ACCOUNTS", f"{ACCOUNT}:{key}")
        environment.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        environment.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
        with subprocess.Popen(
            [node(), str(program), *words, "--blobPort", str(port), "--location", str(place)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                wait_for(port, process)
                create_container(port, key, "tier")
                endpoint = quote(f"http://127.0.0.1:{port}/{ACCOUNT}", safe="")
                yield f"az://tier/{{name}}?endpoint={endpoint}&account_name={ACCOUNT}"
            finally:
                process.terminate()


def wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        assert process.poll() is None, "Azurite ended"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "Azurite does not answer"
            time.sleep(0.1)
        else:
            return


def at(container: str, name: str) -> str:
    return container.replace("{name}", name)


def test_the_store_keeps_the_common_contract(container: str) -> None:
    store = open_store(at(container, "objects"))
    comes_back_whole_and_in_ranges(store)
    for ask in (store.get, store.size):
        with pytest.raises(FileNotFoundError, match="no/such"):
            ask("no/such")
    store.put_if_absent("m/1", b"first")
    with pytest.raises(AlreadyExists, match="m/1"):
        store.put_if_absent("m/1", b"second")
    pieces = [bytes([number]) * MIB for number in range(20)]
    store.put("big", iter(pieces))
    assert store.get("big") == b"".join(pieces)
    assert store.get_range("big", 8 * MIB - 1, 2) == b"\x07\x08"
    store.delete(["big", "m/1", "never"])
    assert [info.path for info in store.list("")] == ["a/b/c"]
    gone = open_store(container.replace("tier/{name}", "no-such-container"))
    with pytest.raises(Unavailable, match="no such bucket"):
        gone.get("x")


def test_exactly_one_of_twenty_processes_puts_an_absent_object(container: str) -> None:
    exactly_one_wins(at(container, "race"), processes=20, rounds=10, timeout_s=200)


def test_the_check_passes_and_a_broker_tiers_there(container: str, tmp_path: Path) -> None:
    done = strata("tier", "check", at(container, "checked"), "--size", "8MiB", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["check"] for row in json.loads(done.stdout) if row["passed"]} == FINDINGS
    assert tiers_what_it_is_given(at(container, "product"), tmp_path)
