"""No line that the product writes holds a secret from its settings: a whole run, and every start that fails.

Method: every setting that can carry a secret has one, and all secrets contain one word. The tests run real processes
and search every line of every log and answer for the word.
"""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import quote

import boto3
import pytest
from moto.server import ThreadedMotoServer
from tests.integration.console_process import Console, console_process
from tests.integration.server_process import Server, strata, strata_process

WORD = "planted"
FILE = f"""
ssl.keystore.password={WORD}1
listener.name.plaintext.ssl.key.password={WORD}2
sasl.jaas.config=org.example.Login required username="u" password="{WORD}3";
delegation.token.secret.key={WORD}4
ssl.truststores.password={WORD}5
some.unknown.password {WORD}6
"""
OVERRIDES = [f"ssl.key.password={WORD}7", f"listener.name.plaintext.ssl.keystore.key={WORD}8"]
ENVIRONMENT = {
    "STRATA_SSL_TRUSTSTORE_PASSWORD": f"{WORD}9",
    "KAFKA_SASL_JAAS_CONFIG": f"{WORD}10",
    "KAFKA_UNKNOWN_PASSWORD": f"{WORD}11",
    "CONFLUENT_TIER_S3_CRED_SECRET": f"{WORD}12",
    "AWS_ACCESS_KEY_ID": "testkey",
    "AWS_SECRET_ACCESS_KEY": f"{WORD}13",
    "AWS_SESSION_TOKEN": f"{WORD}14",
}
USER = f"user:{WORD}"
PAGES_MAX = 100


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a bucket's URL, and set the environment with the secrets."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.Session().client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1"
    )
    client.create_bucket(Bucket="tier")
    client.close()
    yield f"s3://tier/p?endpoint=http://{host}:{port}"
    server.stop()


def printed(*words: str, stdin: str = "", ok: bool = True) -> str:
    done = strata(*words, stdin=stdin)
    assert (done.returncode == 0) == ok, done.stderr
    return done.stdout + done.stderr


def page(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def alter_stores(address: str) -> str:
    """Set dynamic settings of a running broker, a password among them."""
    name = "listener.name.plaintext.ssl.keystore.password"
    words = ("config", "alter", "--broker", "1", "-s", f"{name}={WORD}15", "-b", address)
    return printed(*words)


def every_page(console: Console) -> str:
    """Return the console's pages that links lead to, as HTML and as JSON: each page links its own."""
    seen, left, said = set[str](), ["/"], ""
    while left and len(seen) < PAGES_MAX:
        path = left.pop(0)
        seen.add(path)
        text = console.get(path).text
        said += text
        links = {unescape(one) for one in re.findall(r'href="(/[^"#]*)"', text)}
        left += sorted(one for one in links - seen - set(left) if not one.startswith("/static/"))
    assert {"/brokers/1", "/brokers/1.json", "/topics/t", "/topics/t.json"} <= seen, sorted(seen)
    assert "ssl.keystore.password" in said
    return said


def test_a_whole_run_prints_no_secret(tmp_path: Path, bucket: str) -> None:
    file = tmp_path / "server.properties"
    file.write_text(FILE)
    settings = [
        f"tier.url={bucket}",
        "tier.enable=true",
        "monitor.listener=127.0.0.1:0",
        *OVERRIDES,
    ]
    with Server(tmp_path, settings, options=[str(file)]) as server:
        at = ("-b", server.address)
        said = printed("topic", "create", "t", *at)
        said += printed("produce", "t", *at, stdin="1\n2\n")
        said += alter_stores(server.address)
        for which in (("--broker", "1"), ("--broker", ""), ("--topic", "t")):
            said += printed("config", "describe", *which, "--all", "--json", *at)
            said += printed("config", "describe", *which, "--all", *at)
        assert "ssl.keystore.password" in said
        assert "tier.url" in said
        said += printed("config", "alter", "--topic", "t", "-s", f"x.{USER}@", *at, ok=False)
        port = json.loads((tmp_path / "ready.json").read_text())["monitor_port"]
        said += "".join(page(port, path) for path in ("/metrics", "/healthz", "/readyz", "/x"))
        with console_process(tmp_path / "console", server.address) as console:
            said += every_page(console)
            said += console.output.read_text()
        for words in (("tier", "list"), ("tier", "verify"), ("restore",)):
            said += printed(*words, bucket, "--json") + printed(*words, bucket)
        assert server.stop() == 0
    said += server.output.read_text()
    assert "delegation.token.secret.key" in said
    assert "config changed" in said
    assert [line for line in said.splitlines() if WORD in line] == []


STARTS = """
import sys
from stratalog.cli.main import main
place, *settings = sys.argv[1:]
for setting in settings:
    given = [f"log.dirs={place}/data", "listeners=PLAINTEXT://127.0.0.1:0", setting]
    words = [word for one in given for word in ("--override", one)]
    sys.argv = ["strata", "server", *words]
    try:
        main()
    except SystemExit as end:
        print("ended with", end.code, file=sys.stderr)
"""
REFUSED = [
    f"tier.url=s3://{USER}@bucket",
    f"tier.url=s3://{USER}/@bucket/prefix",
    f"tier.url=S3://{USER}@bucket",
    f"tier.url=https://{USER}@host/bucket?token={WORD}",
    f"tier.url={USER}@host",
    f"tier.url=file://{USER}@host/bucket",
    f"tier.url=file:///bucket?token={WORD}",
    f"tier.url=memory://{USER}@host",
    f"tier.url=s3://bucket?secret_access_key={WORD}",
    f"tier.url=s3://bucket?endpoint=http://{USER}@127.0.0.1:1",
    f"tier.url=s3://bucket?endpoint={quote(f'http://{USER}@127.0.0.1:1', safe='')}",
    f"tier.url=s3://bucket?endpoint={USER}",
    f"tier.url=gs://bucket?endpoint=http://{USER}@127.0.0.1:1",
    f"listeners=PLAINTEXT://{USER}@127.0.0.1:0",
    f"advertised.listeners=PLAINTEXT://{USER}@127.0.0.1:0",
    f"monitor.listener={USER}@127.0.0.1:0",
    f"ssl.keystore.password:{WORD}",
    f"ssl.keystore.password {WORD}",
]


def test_a_start_that_fails_prints_no_secret(tmp_path: Path, bucket: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTS, str(tmp_path), *REFUSED],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("ended")] == ["ended with 2"] * len(REFUSED)
    assert len([line for line in lines if line.startswith("strata: ")]) == len(REFUSED)
    assert [line for line in (done.stdout + done.stderr).splitlines() if WORD in line] == []


def test_an_endpoint_of_another_name_prints_no_secret(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    confluent = [
        "confluent.tier.s3.bucket=b",
        f"confluent.tier.s3.aws.endpoint.override=http://{USER}@127.0.0.1:1",
    ]
    place = [f"log.dirs={tmp_path}/data", "listeners=PLAINTEXT://127.0.0.1:0"]
    first = strata_process(
        "server", *(word for one in (*place, *confluent) for word in ("--override", one))
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{USER}@127.0.0.1:1")
    for done in (first, strata("tier", "list", "s3://b")):
        assert done.returncode == 2
        assert "endpoint" in done.stderr.splitlines()[-1]
        assert WORD not in done.stdout + done.stderr
