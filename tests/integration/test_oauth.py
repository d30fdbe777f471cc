"""SASL OAUTHBEARER of a real broker: valid, wrong, expired, forged and malformed tokens, and keys that change."""

import asyncio
import hmac
import json
import struct
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.integration.issuer import CLIENT, SECRET, Issuer
from tests.integration.server_process import strata
from tests.integration.test_sasl import Raw, principals

from stratalog.adapters.blocking_socket import BlockingNetwork
from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.blocking import BlockingClient
from stratalog.client.link import open_link
from stratalog.client.security import ClientSecurity, Dialer, security_of
from stratalog.errors import ErrorCode, Rejected, Unavailable, UserError
from stratalog.table.secured import security_options
from stratalog.testing.broker import TemporaryBroker

TIMEOUT_S = 30
LATE_S = 60
ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
ACCEPTED = (
    "is not accepted; accepted: file:///PATH, https://HOST/PATH, or http: of this machine, in ASCII"
)
REFUSED = "Authentication failed: invalid credentials with SASL mechanism OAUTHBEARER"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Issuer]:
    with Issuer(tmp_path_factory.mktemp("issuer")) as started:
        yield started


def settings(keys: str, **more: str) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.expected.issuer": "issuer",
        "sasl.oauthbearer.expected.audience": "kafka,other",
        "connection.failed.authentication.delay.ms": "1",
        **{name.replace("_", "."): value for name, value in more.items()},
    }


@pytest.fixture(scope="module")
def broker(issuer: Issuer) -> Iterator[TemporaryBroker]:
    with TemporaryBroker(settings(issuer.url)) as started:
        yield started


def security(url: str, **more: str) -> ClientSecurity:
    found = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        ENDPOINT: url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "sasl.login.callback.handler.class": "org.apache.kafka.….OAuthBearerLoginCallbackHandler",
    }
    return security_of(found | more)


def login(broker: TemporaryBroker, token: str, user: str = "") -> tuple[int, bytes] | None:
    """Return the broker's error: in one step, or after the byte with which a client takes the refusal."""
    raw = Raw(broker)
    assert raw.handshake("OAUTHBEARER") == 0
    named = f"a={user}" if user else ""
    answer = raw.token(f"n,{named},\1auth=Bearer {token}\1\1".encode())
    if answer is not None and answer[1]:
        assert json.loads(answer[1]) == {"status": "invalid_token"}
        answer = raw.token(b"\1")
    assert raw.is_open() == (answer == (0, b""))
    raw.close()
    return answer


def test_both_shells_log_in_by_a_server_and_by_a_file(
    broker: TemporaryBroker, issuer: Issuer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.token(sub="bob") + "\n")
    for url, user in ((issuer.url, "alice"), (file.as_uri(), "bob")):
        with BlockingClient(BlockingNetwork(), broker.address, security=security(url)) as client:
            assert client.metadata().brokers
            assert f"User:{user}" in principals(broker)

        async def story(used: ClientSecurity) -> None:
            async with await Client.connect(TcpNetwork(), broker.address, security=used) as client:
                assert (await client.metadata()).brokers

        asyncio.run(story(security(url)))
    assert issuer.asked == 1, "a token is kept for most of its life"


def test_librdkafka_and_kafka_python_log_in(broker: TemporaryBroker, issuer: Issuer) -> None:
    failed: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (issuer.token(sub="rdkafka"), time.time() + 300),
        }
    )
    producer.produce("tokens", b"x", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == [None]

    class Provider(AbstractTokenProvider):
        def token(self) -> str:
            return issuer.token(sub="python")

    python = KafkaProducer(
        bootstrap_servers=broker.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    assert python.send("tokens", b"y").get(TIMEOUT_S).topic == "tokens"
    assert {"User:rdkafka", "User:python"} <= principals(broker)
    python.close()


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def unsigned(claims: dict[str, Any], algorithm: str, signature: bytes = b"") -> str:
    header = json.dumps({"alg": algorithm, "kid": "first"})
    return ".".join(map(encoded, (header.encode(), json.dumps(claims).encode(), signature)))


def with_algorithm(token: str, algorithm: object) -> str:
    header = encoded(json.dumps({"alg": algorithm, "kid": "first"}).encode())
    return f"{header}.{token.partition('.')[2]}"


def wrong(issuer: Issuer) -> Iterator[tuple[str, str]]:
    now = time.time()
    right = issuer.token()
    yield "expired", issuer.token(exp=now - LATE_S)
    yield "not valid yet", issuer.token(nbf=now + LATE_S)
    yield "issued later", issuer.token(iat=now + LATE_S, exp=now + 2 * LATE_S)
    yield "another issuer", issuer.token(iss="other")
    yield "no issuer", issuer.token(iss=None)
    yield "another audience", issuer.token(aud="elsewhere")
    yield "no audience", issuer.token(aud=None)
    yield "audiences of a wrong type", issuer.token(aud=[["kafka"]])
    yield "no user", issuer.token(sub=None)
    yield "an empty user", issuer.token(sub=" ")
    yield "no end", issuer.token(exp=None)
    yield "no begin", issuer.token(iat=None)
    yield "an end without end", unsigned(issuer.claims(exp=float("inf")), "RS256", b"x" * 256)
    yield "a critical header", issuer.token(headers={"crit": ["x"], "x": 1})
    yield "no signature", unsigned(issuer.claims(), "none")
    signed = unsigned(issuer.claims(), "HS256")[:-1]
    shared = hmac.digest(issuer.pem("first"), signed.encode(), "sha256")
    yield "signed by the public key", f"{signed}.{encoded(shared)}"
    yield "an empty signature", right.rpartition(".")[0] + "."
    yield "a list as algorithm", with_algorithm(right, ["RS256"])
    yield "an object as algorithm", with_algorithm(right, {})
    yield "a long header", issuer.token(headers={"x": [[]] * 9999})
    yield "a long token", issuer.token(x="y" * 12_300)
    yield "a long message", issuer.token(x="y" * 16_384)
    yield "half a token", right[: len(right) // 2]
    for place in (5, len(right) // 2, len(right) - 9):
        changed = "A" if right[place] != "A" else "B"
        yield f"byte {place} changed", right[:place] + changed + right[place + 1 :]


def test_every_wrong_token_is_refused(broker: TemporaryBroker, issuer: Issuer) -> None:
    assert login(broker, issuer.token()) == (0, b"")
    assert login(broker, issuer.token(aud="other", nbf=time.time() + 5)) == (0, b"")
    for name, token in wrong(issuer):
        assert login(broker, token) == (58, b""), name
    assert login(broker, issuer.token(), user="alice") == (0, b"")
    assert login(broker, issuer.token(), user="bob") == (58, b"")


def test_malformed_messages_are_refused_at_once(broker: TemporaryBroker, issuer: Issuer) -> None:
    token = issuer.token()
    for message in (
        "",
        "\1",
        "n,,",
        f"n,,\1auth=Bearer {token}\1",
        f"n,,\1auth=Basic {token}\1\1",
        f"y,,\1auth=Bearer {token}\1\1",
        "n,,\1auth=Bearer\1\1",
        "n,,\1x=y\1\1",
        f"n,,auth=Bearer {token}\1\1",
        f"n,,\1auth=Bearer {token}\1\1" + "x",
        "n,,\1" + "a=b\1" * 20_000,
        "\udcff",
    ):
        raw = Raw(broker)
        assert raw.handshake("OAUTHBEARER") == 0
        assert raw.token(message.encode(errors="surrogateescape")) == (58, b""), message[:60]
        assert not raw.is_open()
        raw.close()
    raw = Raw(broker)
    assert raw.handshake("OAUTHBEARER") == 0
    assert raw.token(f"n,,\1foo=bar\1auth=bEARER  {token}\1traceId=1\1\1".encode()) == (0, b"")
    raw.close()


def test_our_client_is_refused_in_one_line(
    broker: TemporaryBroker, issuer: Issuer, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.token(iss="other"))
    with (
        BlockingClient(
            BlockingNetwork(), broker.address, security=security(file.as_uri())
        ) as client,
        pytest.raises(Rejected, match="invalid credentials") as refused,
    ):
        client.metadata()
    assert refused.value.code is ErrorCode.sasl_authentication_failed
    config = tmp_path / "client.properties"
    wrong_secret = {
        "bootstrap.servers": broker.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        ENDPOINT: issuer.url,
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="{CLIENT}" clientSecret="planted-wrong";',
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in wrong_secret.items()))
    done = strata("--config", str(config), "topic", "list")
    assert done.returncode == 2
    assert (
        done.stderr
        == f"strata: {ENDPOINT}: {issuer.url}: the server refuses the request with status 401\n"
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "file:///no/such/file",
            "broker HERE unreachable: ENDPOINT: file:///no/such/file: No such",
        ),
        ("file:///a%00b", f"ENDPOINT: 'file:///a%00b' {ACCEPTED}"),
        ("http://127.0.0.1:1/ü", f"ENDPOINT: 'http://127.0.0.1:1/ü' {ACCEPTED}"),
        ("http://127.0.0.1:1/a b", f"ENDPOINT: 'http://127.0.0.1:1/a b' {ACCEPTED}"),
        ("http://127.0.0.1:1/", "broker HERE unreachable: ENDPOINT: http://127.0.0.1:1/: "),
    ],
)
def test_a_token_that_is_not_available_names_the_setting(
    broker: TemporaryBroker, tmp_path: Path, url: str, said: str
) -> None:
    line = said.replace("ENDPOINT", ENDPOINT).replace("HERE", broker.address)
    assert refused_line(broker, tmp_path, url).startswith(f"strata: {line}")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "the answer has no access_token"),
        (b"[]", "the answer has no access_token"),
        (b'{"token": "a"}', "the answer has no access_token"),
        (b'{"access_token": "a", "expires_in": "x"}', "the answer has no access_token"),
        (b'{"access_token": 1}', "the answer's access_token is no token"),
        (b'{"access_token": "a\\nb"}', "the answer's access_token is no token"),
    ],
)
def test_a_server_that_answers_without_a_token_is_named(
    broker: TemporaryBroker, issuer: Issuer, tmp_path: Path, answer: bytes, said: str
) -> None:
    issuer.instead = answer
    url = f"{issuer.url}/other"
    assert refused_line(broker, tmp_path, url).endswith(f"{ENDPOINT}: {url}: {said}\n")


def refused_line(broker: TemporaryBroker, tmp_path: Path, url: str) -> str:
    """Return what `strata` says of a login by a token from this URL."""
    config = tmp_path / "client.properties"
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        ENDPOINT: url,
        "sasl.oauthbearer.client.credentials.client.id": CLIENT,
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
    }
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    done = strata("--config", str(config), "topic", "list", "-b", broker.address)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def test_a_refused_token_is_named_to_its_client_and_in_the_audit(
    issuer: Issuer, tmp_path: Path
) -> None:
    audit, file = tmp_path / "audit", tmp_path / "token"
    now = int(time.time())
    signature = "the token has no valid signature by one of the issuer's keys"
    times = "iat, exp or nbf is missing, or wrong"
    cases = {
        issuer.token(iss="other"): ("iss 'other'", "iss is 'other'; the listener expects 'issuer'"),
        issuer.token(aud="x" * 999): (
            "aud 'xxx",
            f"aud is '{'x' * 199}; the listener expects kafka, other",
        ),
        issuer.token(iat=now - 99, exp=now - LATE_S): (
            f"exp {now - LATE_S}",
            "the token has expired",
        ),
        issuer.token(nbf=now + LATE_S): ("iss 'issuer'", "the token is not valid yet"),
        issuer.token(iat=None): ("iss 'issuer'", times),
        issuer.token(sub="\n"): ("sub '\\n'", "sub is '\\n', which names no user"),
        issuer.token(sub="a\nb"): ("sub 'a\\nb'", "sub is 'a\\nb', which names no user"),
        issuer.token(sub=" "): ("sub ' '", "sub is ' ', which names no user"),
        unsigned(issuer.claims(), "RS256", b"x"): ("iss 'issuer'", signature),
        "nonsense": ("it is no JSON Web Token", signature),
        with_algorithm(issuer.token(), ["RS256"]): ("iss 'issuer'", signature),
        issuer.token(x="y" * 12_300): ("iss 'issuer'", "the token has "),
    }
    with TemporaryBroker(settings(issuer.url) | {"audit.log.path": str(audit)}) as broker:
        for token, (said, reason) in cases.items():
            file.write_text(token)
            line = refused_line(broker, tmp_path, file.as_uri())
            assert line.startswith(f"strata: broker {broker.address}: {REFUSED}; "), line
            assert said in line
            assert ("sasl.oauthbearer.expected.*" in line) == (token != "nonsense")
            assert token not in line
            lines = audit.read_text()
            (shown,) = [json.loads(one) for one in lines.splitlines()[-1:]]
            assert shown["event"] == "login failed"
            assert shown["reason"].startswith(reason)
            assert token not in lines


def test_keys_change_while_the_broker_runs(tmp_path: Path) -> None:
    with Issuer(tmp_path) as issuer, TemporaryBroker(settings(issuer.url)) as broker:

        def look(ms: int) -> None:
            broker.advance(ms)
            assert broker._node is not None
            broker._run(broker._node._look_at_keys())

        issuer.add("second", is_rsa=False)
        look(9_000)
        assert login(broker, issuer.token("second")) == (58, b"")
        look(0)  # keys are read again at most every ten seconds
        assert login(broker, issuer.token("second")) == (58, b"")
        look(1_000)
        assert login(broker, issuer.token("second")) == (0, b"")
        issuer.remove("first")
        look(10_000)  # no unknown key was named: the old one counts until the next hour
        first = Issuer.token
        issuer.status = 500
        look(3_600_000)
        issuer.lifetime_s = 2 * 3600.0
        assert login(broker, first(issuer, "second")) == (0, b""), "the previous keys stay"
        issuer.status = 200
        look(10_000)
        assert login(broker, issuer.token("second", headers={"kid": "first"})) == (58, b"")
        assert login(broker, issuer.token("second")) == (0, b"")


class Ahead(BlockingNetwork):
    """The system's network with a clock that a test advances."""

    ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


def test_a_session_ends_with_its_token_and_our_client_goes_on(
    issuer: Issuer, tmp_path: Path
) -> None:
    with TemporaryBroker(settings(issuer.url)) as broker:
        raw = Raw(broker)
        assert raw.handshake("OAUTHBEARER") == 0
        message = f"n,,\1auth=Bearer {issuer.token(exp=time.time() + 200)}\1\1".encode()
        answer = raw.ask(36, 1, struct.pack(">i", len(message)) + message)
        assert answer is not None
        (lifetime_ms,) = struct.unpack(">q", answer[-8:])
        assert 0 < lifetime_ms <= 200_000
        assert raw.is_open()
        broker.advance(200_001)
        assert not raw.is_open()
        raw.close()
        file, network = tmp_path / "token", Ahead()
        source = security(file.as_uri())
        with BlockingClient(network, broker.address, security=source) as client:
            for user in ("one", "two"):
                file.write_text(issuer.token(sub=user, exp=time.time() + 800))
                assert client.metadata().brokers
                assert f"User:{user}" in principals(broker)
                network.ahead_s += 600


NOT_STARTED = {
    "no URL": ("", "sasl.oauthbearer.jwks.endpoint.url is not set"),
    "plain text elsewhere": ("http://example.com/keys", "accepted: file:///PATH, https://"),
    "no scheme": ("/keys.json", "accepted: file:///PATH, https://"),
    "a password in the URL": ("https://u:p@127.0.0.1/keys", "accepted: file:///PATH, https://"),
    "no file": ("file:///none.json", "none.json: No such file"),
    "no server": ("http://127.0.0.1:9/", "refused"),
    "no key set": ("text", "it is no JSON Web Key Set"),
    "only a shared secret": ('{"keys": [{"kty": "oct", "k": "AA"}]}', "no public key"),
}


@pytest.mark.parametrize("case", NOT_STARTED)
def test_a_listener_that_can_check_no_token_does_not_start(case: str, tmp_path: Path) -> None:
    url, message = NOT_STARTED[case]
    if case in {"no key set", "only a shared secret"}:
        file = tmp_path / "keys"
        file.write_text(url)
        url = file.as_uri()
    with pytest.raises(UserError, match=message) as refused:
        TemporaryBroker(settings(url)).start()
    assert "sasl.oauthbearer.jwks.endpoint.url" in str(refused.value)


def test_no_connection_stays_where_the_token_server_is_away(broker: TemporaryBroker) -> None:
    host, _, port = broker.address.rpartition(":")
    dialer = Dialer(TcpNetwork(), security("http://127.0.0.1:9/token"))

    def is_open() -> bool:
        mine = psutil.Process().net_connections("tcp")
        return any(one.raddr and one.raddr.port == int(port) for one in mine if one.fd >= 0)

    async def attempt() -> None:
        with pytest.raises(Unavailable):
            await open_link(dialer, host, int(port), client_id="away", timeout_s=TIMEOUT_S)
        async with asyncio.timeout(TIMEOUT_S):
            while is_open():
                await asyncio.sleep(0.01)

    asyncio.run(attempt())


def test_a_client_without_a_source_is_refused_and_spark_takes_no_secret() -> None:
    for change, message in (
        ({"sasl.oauthbearer.token.endpoint.url": ""}, "token.endpoint.url is not set"),
        ({"sasl.oauthbearer.client.credentials.client.id": ""}, "client.id and"),
        ({"sasl.jaas.config": "x required;"}, "OAuthBearerLoginModule required"),
    ):
        with pytest.raises(UserError, match=message):
            security("https://127.0.0.1/token", **change)
    option = "kafka.sasl.oauthbearer.client.credentials.client.secret"
    with pytest.raises(ValueError, match="a secret would be in Spark's plan"):
        security_options({"kafka.security.protocol": "SASL_SSL", option: SECRET})
