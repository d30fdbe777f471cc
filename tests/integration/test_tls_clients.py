"""Our own clients over mutual TLS: `strata`, both shells, `stratalog.read`, the sink, and the nodes of a cluster."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.integration.server_process import strata

from stratalog import read
from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.network import TcpNetwork
from stratalog.cli.shared.terminal import client_properties
from stratalog.client.aio import Client
from stratalog.client.blocking import BlockingClient
from stratalog.client.calls import NewTopic
from stratalog.client.security import security_of
from stratalog.errors import Unavailable, UserError
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority
from stratalog.testing.temporary_cluster import TemporaryCluster

Properties = dict[str, str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TemporaryBroker]:
    required = {"ssl.client.auth": "required"}
    place = tmp_path_factory.mktemp("broker") / "data"
    with TemporaryBroker(required, directory=place, tls=True) as started:
        yield started


@pytest.fixture(scope="module")
def properties(broker: TemporaryBroker) -> Properties:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(broker.authority.certificate),
        "ssl.keystore.location": str(broker.authority.issue("alice").pem),
    }


def file_of(properties: Mapping[str, str], place: Path) -> str:
    path = place / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return str(path)


def test_strata_speaks_tls_by_a_file_of_client_properties(
    broker: TemporaryBroker, properties: Properties, tmp_path: Path
) -> None:
    config = file_of(properties | {"bootstrap.servers": broker.address}, tmp_path)
    for words, stdin in (
        (("topic", "create", "cli"), ""),
        (("produce", "cli"), "one\ntwo\n"),
        (("consume", "cli", "--from", "beginning", "--until-end"), ""),
    ):
        done = strata("--config", config, *words, stdin=stdin)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "one\ntwo\n"
    assert client_properties() == {}, "the file of one command serves the next in this process"


WRONG: dict[str, tuple[Callable[[Properties, Path], Properties], str]] = {
    "no certificate": (
        lambda right, _at: {k: v for k, v in right.items() if "keystore" not in k},
        "certificate required|closed the connection",
    ),
    "another authority": (
        lambda right, at: (
            right | {"ssl.truststore.location": str(Authority(at / "other").certificate)}
        ),
        "self-signed certificate in certificate chain; set ssl.truststore.location to the",
    ),
    "a certificate of another authority": (
        lambda right, at: (
            right | {"ssl.keystore.location": str(Authority(at / "other").issue("a").pem)}
        ),
        "it refuses the client's certificate, set by ssl.keystore.location|closed the connection",
    ),
    "plain text": (lambda _right, _at: {}, "set security.protocol=SSL"),
    "missing file": (
        lambda right, _at: right | {"ssl.keystore.location": "/none.pem"},
        "ssl.keystore.location: cannot use /none.pem: No such file",
    ),
    "unknown setting": (
        lambda right, _at: right | {"ssl.truststore.locations": "x"},
        "ssl.truststore.locations is no setting; did you mean ssl.truststore.location",
    ),
    "unknown protocol": (
        lambda right, _at: right | {"security.protocol": "TLS"},
        "security.protocol: 'TLS' is not accepted; accepted: PLAINTEXT, SSL",
    ),
    "unknown mechanism": (
        lambda right, _at: right | {"security.protocol": "SASL_SSL", "sasl.mechanism": "MAGIC"},
        "sasl.mechanism: 'MAGIC' is not accepted; accepted: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
    ),
    "no mechanism": (
        lambda right, _at: right | {"security.protocol": "SASL_SSL"},
        "sasl.mechanism is not set; accepted: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
    ),
    "no login": (
        lambda right, _at: right | {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
        "sasl.jaas.config is not set; accepted: org.apache.kafka.common.security.plain.PlainLogin",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_line_and_exit_code_two(
    broker: TemporaryBroker, properties: Properties, tmp_path: Path, case: str
) -> None:
    change, message = WRONG[case]
    config = file_of(change(properties, tmp_path), tmp_path)
    done = strata("--config", config, "topic", "list", "-b", broker.address)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert any(one in done.stderr.lower() for one in message.lower().split("|")), done.stderr


def test_a_server_of_another_name_is_refused_unless_the_properties_say_otherwise(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "ca")
    elsewhere = authority.issue("server", hosts=["elsewhere"])
    settings = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(elsewhere.pem)}
    trusting = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.certificate),
    }
    with TemporaryBroker(settings) as broker:
        client = BlockingClient(
            BlockingNetwork(), broker.address, security=security_of(trusting), timeout_s=10
        )
        with pytest.raises(Unavailable, match=r"'127.0.0.1'; connect by a name that the cert"):
            client.metadata()
        lax = trusting | {"ssl.endpoint.identification.algorithm": ""}
        client = BlockingClient(BlockingNetwork(), broker.address, security=security_of(lax))
        assert client.metadata().brokers
        client.close()


def test_read_and_both_shells_speak_tls(
    broker: TemporaryBroker, properties: Properties, tmp_path: Path
) -> None:
    config = file_of(properties, tmp_path)
    lines = "".join(f"{number}\n" for number in range(5000))
    strata("--config", config, "topic", "create", "shells", "-b", broker.address)
    done = strata("--config", config, "produce", "shells", "-b", broker.address, stdin=lines)
    assert done.returncode == 0, done.stderr
    reader = read("shells", bootstrap_servers=broker.address, security=properties)
    found = reader.read_all()
    assert found.column("value").to_pylist() == [b"%d" % number for number in range(5000)]
    with pytest.raises(ValueError, match=r"security: option 'kafka\.ssl\.key' is no setting"):
        read("shells", bootstrap_servers=broker.address, security=properties | {"ssl.key": "x"})


def test_the_asyncio_client_names_unusable_keys(broker: TemporaryBroker) -> None:
    security = security_of({"security.protocol": "SSL", "ssl.keystore.location": "/none.pem"})

    async def story() -> None:
        with pytest.raises(UserError, match=r"cannot use /none\.pem"):
            await Client.connect(TcpNetwork(), broker.address, security=security)

    asyncio.run(story())


def test_the_nodes_of_a_cluster_reach_one_another_by_mutual_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "ssl.keystore.location": str(authority.issue("node").pem),
        "ssl.truststore.location": str(authority.certificate),
        "ssl.client.auth": "required",
        "offsets.topic.replication.factor": "3",
    }
    security = security_of(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(authority.certificate),
            "ssl.keystore.location": str(authority.issue("alice").pem),
        }
    )

    async def story(address: str) -> None:
        async with await Client.connect(TcpNetwork(), address, security=security) as client:
            (made,) = await client.create_topics([NewTopic("t", 3, 3)])
            assert made.error == 0, made.message
            assert len((await client.metadata()).brokers) == 3

    with TemporaryCluster(3, settings) as three:
        asyncio.run(story(three.address))
        three.kill(1)
        three.restart(1)
        answered = {
            str(one.session.principal)
            for broker in three.brokers.values()
            if broker._node is not None
            for one in broker._node._connections
            if one.session.client_id
        }
        assert answered == {"User:CN=node"}


def test_a_client_without_tls_imports_nothing_of_it() -> None:
    code = (
        "import sys, stratalog.node, stratalog.client.aio, stratalog.client.blocking\n"
        "found = [one for one in sys.modules if 'tls_' in one or one.startswith('cryptography')]\n"
        "sys.exit(str(found) if found else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
