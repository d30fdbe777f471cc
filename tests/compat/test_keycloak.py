"""Goal: the broker takes the tokens of a real OAuth server, and no others; Java, librdkafka and ours log in with it.

Method: Keycloak serves https beside a broker process, which reads its keys by URL. Clients get tokens by id and secret.
Keys rotate, tokens expire, and another realm issues some.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.clients import TIMEOUT_S, ConfluentKafka, Sent
from tests.compat.keycloak import AUDIENCE, SECRET, Keycloak, running_keycloak
from tests.compat.secure_clients import ALLOWED, MODULES, TOOLS, Java
from tests.compat.tools import java_tool
from tests.integration.server_process import strata
from tests.integration.waiting import wait_for

from stratalog.testing.certificates import Authority

pytestmark = [pytest.mark.big, pytest.mark.timeout(1200), pytest.mark.xdist_group("keycloak")]
RECORDS = [Sent(f"k{number}", f"v{number}") for number in range(20)]
LIFETIMES_S = {"etl": 300, "short": 12}
"""The clients of a realm, and the life of their tokens."""
SKEW_S = 1


class Place(NamedTuple):
    """A broker that trusts a realm, and the authority of both servers' certificates."""

    broker: BrokerProcess
    keycloak: Keycloak
    authority: Path
    realm: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    realm = "data"
    authority = Authority(tmp_path_factory.mktemp("authority"))
    both = tmp_path_factory.mktemp("both") / "authorities.pem"
    with running_keycloak(tmp_path_factory.mktemp("keycloak")) as keycloak:
        for name in (realm, "other"):
            keycloak.add_realm(name, LIFETIMES_S)
        both.write_bytes(authority.certificate.read_bytes() + keycloak.authority.read_bytes())
        settings = {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "inter.broker.listener.name": "SASL_SSL",
            "ssl.keystore.location": str(authority.issue("broker").pem),
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keycloak.keys_url(realm),
            "sasl.oauthbearer.expected.issuer": keycloak.issuer(realm),
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.sub.claim.name": "azp",
            "sasl.oauthbearer.clock.skew.seconds": str(SKEW_S),
            "tier.url": "",
        }
        named = {name.replace(".", "__"): value for name, value in settings.items()}
        environ = {"SSL_CERT_FILE": str(both)}
        with broker_process(tmp_path_factory.mktemp("broker"), environ, **named) as broker:
            yield Place(broker, keycloak, both, realm)


def librdkafka(place: Place, client: str, realm: str = "") -> dict[str, str]:
    return {
        "bootstrap.servers": place.broker.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(place.authority),
        "https.ca.location": str(place.authority),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": client,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.token.endpoint.url": place.keycloak.token_url(realm or place.realm),
    }


def properties(place: Place, client: str, realm: str = "") -> dict[str, str]:
    """Return the settings of Apache Kafka's clients, which are ours too."""
    package = f"{MODULES}.oauthbearer"
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place.authority),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required "
        f'clientId="{client}" clientSecret="{SECRET}" '
        f'ssl.truststore.type="PEM" ssl.truststore.location="{place.authority}";',
        "sasl.oauthbearer.token.endpoint.url": place.keycloak.token_url(realm or place.realm),
    }


def java(place: Place, directory: Path, client: str, realm: str = "") -> Java:
    file = directory / f"{client}-{realm}.properties"
    settings = properties(place, client, realm)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    allowed = settings["sasl.oauthbearer.token.endpoint.url"]
    return Java(file, {"JDK_JAVA_OPTIONS": f"-D{ALLOWED}={allowed}"})


def errors_of(settings: dict[str, object]) -> list[str]:
    """Return the first errors of a producer that cannot log in, or [] if it writes a record."""
    errors: list[str] = []
    producer = Producer(
        {**settings, "error_cb": lambda error: errors.append(f"{error.name()}: {error.str()}")}
    )
    producer.produce("tried", b"x")
    deadline = time.monotonic() + TIMEOUT_S
    while len(producer) and not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    producer.purge()
    return errors


def by_token(place: Place, token: str) -> dict[str, object]:
    found: dict[str, object] = {
        name: value
        for name, value in librdkafka(place, "").items()
        if not name.startswith("sasl.oauthbearer.") and name != "https.ca.location"
    }
    return found | {"oauth_cb": lambda _: (token, time.time() + 300)}


def test_librdkafka_java_and_ours_log_in_with_the_servers_tokens(
    place: Place, tmp_path: Path
) -> None:
    address = place.broker.address
    for name, client in (
        ("librdkafka", ConfluentKafka(librdkafka(place, "etl"))),
        ("java", java(place, tmp_path, "etl")),
    ):
        client.produce(address, name, RECORDS, "none")
        read = client.consume(address, name, name, len(RECORDS))
        assert [one.sent for one in read] == RECORDS
    file = tmp_path / "ours.properties"
    settings = properties(place, "etl") | {"bootstrap.servers": address}
    settings["sasl.jaas.config"] = settings["sasl.jaas.config"].partition(" ssl.")[0] + ";"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    done = strata(
        "--config", str(file), "topic", "list", environ={"SSL_CERT_FILE": str(place.authority)}
    )
    assert done.returncode == 0, done.stderr
    assert {"librdkafka", "java"} <= set(done.stdout.split())


def test_an_expired_token_and_one_of_another_realm_are_refused(
    place: Place, tmp_path: Path
) -> None:
    late = place.keycloak.token(place.realm, "short")
    (other,) = errors_of(librdkafka(place, "etl", "other"))[:1]
    assert other.startswith("_AUTHENTICATION: ")
    with pytest.raises(AssertionError, match="SaslAuthenticationException"):
        java(place, tmp_path, "etl", "other").produce(
            place.broker.address, "tried", RECORDS, "none"
        )
    assert errors_of(by_token(place, place.keycloak.token(place.realm, "etl"))) == []
    time.sleep(LIFETIMES_S["short"] + SKEW_S + 1)
    assert errors_of(by_token(place, late))[0].startswith("_AUTHENTICATION: ")
    wrong = librdkafka(place, "etl") | {"sasl.oauthbearer.client.secret": "wrong"}
    assert "unauthorized_client" in errors_of(wrong)[0] or "_AUTH" in errors_of(wrong)[0]


def test_clients_log_in_again_before_their_tokens_end(place: Place, tmp_path: Path) -> None:
    """KIP-368: both clients write for two lives of a token, on their connections of the start."""
    errors: list[str] = []
    settings = librdkafka(place, "short")
    producer = Producer(
        {**settings, "error_cb": lambda error: errors.append(f"{error.name()}: {error.str()}")}
    )
    failed: list[object] = []
    end = time.monotonic() + 2.5 * LIFETIMES_S["short"]
    while time.monotonic() < end:
        producer.produce("renewed", b"x", on_delivery=lambda error, _: failed.append(error))
        producer.poll(0.5)
    assert producer.flush(TIMEOUT_S) == 0
    assert (set(failed), errors) == ({None}, [])
    used = java(place, tmp_path, "short")
    seconds = 2 * LIFETIMES_S["short"]
    words = ("--topic", "renewed", "--record-size", "10", "--throughput", "2")
    said = used.run(
        f"{TOOLS}.ProducerPerformance",
        place.broker.address,
        *words,
        "--num-records",
        str(2 * seconds),
    )
    assert f"{2 * seconds} records sent" in said


def test_keys_rotate_while_the_broker_runs(place: Place) -> None:
    old = place.keycloak.token(place.realm, "etl")
    assert errors_of(by_token(place, old)) == []
    place.keycloak.rotate(place.realm)
    new = place.keycloak.token(place.realm, "etl")
    wait_for(lambda: errors_of(by_token(place, new)) == [], "a login with the new key")
    assert errors_of(by_token(place, old))[0].startswith("_AUTHENTICATION: ")


def test_kafkas_compatibility_tool_passes_with_the_brokers_settings(place: Place) -> None:
    given = {
        "--clientId": "etl",
        "--clientSecret": SECRET,
        "--sasl.oauthbearer.token.endpoint.url": place.keycloak.token_url(place.realm),
        "--sasl.oauthbearer.jwks.endpoint.url": place.keycloak.keys_url(place.realm),
        "--sasl.oauthbearer.expected.issuer": place.keycloak.issuer(place.realm),
        "--sasl.oauthbearer.expected.audience": AUDIENCE,
        "--sasl.oauthbearer.sub.claim.name": "azp",
        "--ssl.truststore.type": "PEM",
        "--ssl.truststore.location": str(place.authority),
    }
    urls = [value for name, value in given.items() if name.endswith("url")]
    words = [word for pair in given.items() for word in pair]
    environ = {"JDK_JAVA_OPTIONS": f"-D{ALLOWED}={','.join(urls)}"}
    done = java_tool(f"{TOOLS}.OAuthCompatibilityTool", *words, environ=environ)
    assert "PASSED 5/5" in done.stdout, done.stdout + done.stderr
