"""Logins by token: a thread checks signatures, and an error of any kind is a failed login."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from stratalog.adapters.threads import ThreadWorker
from stratalog.broker.network.sasl import SaslState
from stratalog.broker.network.tokens import Bearer, Tokens
from stratalog.config.sasl import SaslListener
from stratalog.config.tokens import TokenRules
from stratalog.errors import ErrorCode, Rejected

MESSAGE = b"n,,\1auth=Bearer abc\1\1"
LONG = 20_000


class Keys:
    """Keys whose check goes on until the test says so."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def claims(self, token: str) -> Mapping[str, Any]:
        self.begun.set()
        assert self.goes_on.wait(20)
        return {"exp": 9, "iat": 1, "sub": token}


class Outside:
    """What `Tokens` needs of a node."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.workers = self.clock = self
        self.started: list[ThreadWorker] = []

    def start(self, name: str) -> ThreadWorker:
        self.started.append(ThreadWorker(name, 1))
        return self.started[-1]

    def token_keys(self, _: str) -> Keys:
        return self.keys

    def now_ms(self) -> int:
        return 2000

    def steady_ms(self) -> int:
        return 0


def rules() -> TokenRules:
    return TokenRules(
        keys_url="file:///x", refresh_ms=1000, issuer="", audiences=(), user_claim="sub", skew_s=0
    )


def test_the_event_loop_goes_on_while_a_token_is_checked() -> None:
    async def story() -> None:
        keys = Keys()
        tokens = Tokens(rules(), Outside(keys))  # type: ignore[arg-type]
        await tokens.load()
        checking = asyncio.create_task(tokens.check("alice"))
        await asyncio.get_running_loop().run_in_executor(None, keys.begun.wait, 20)
        assert not checking.done()
        keys.goes_on.set()
        assert await checking == Bearer("alice", 7000)
        keys.begun.clear()
        assert "accepted: 16384" in str(await tokens.check("x" * LONG))
        assert not keys.begun.is_set()
        await tokens.close()
        assert await tokens.check("alice") == "the node stops"

    asyncio.run(story())


@pytest.mark.parametrize(
    "error", [TypeError("unhashable"), KeyError("x"), RecursionError(), OverflowError()]
)
def test_an_error_that_nothing_expects_is_a_failed_login(error: Exception) -> None:
    async def bearer(_: str) -> Bearer:
        raise error

    listener = SaslListener(mechanisms=("OAUTHBEARER",))
    sasl = SaslState(lambda: listener, bearer)
    assert sasl.handshake("OAUTHBEARER", None) == 0  # type: ignore[arg-type]
    with pytest.raises(Rejected) as refused:
        asyncio.run(sasl.authenticate(MESSAGE, 0))
    assert refused.value.code is ErrorCode.sasl_authentication_failed
    assert sasl.has_failed
    assert type(error).__name__ in sasl.why
    assert type(error).__name__ not in refused.value.message


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_a_long_message_is_refused_before_it_is_parsed(mechanism: str) -> None:
    async def bearer(_: str) -> Bearer:
        raise AssertionError

    listener = SaslListener(mechanisms=(mechanism,), plain={"a": "b" * LONG})
    sasl = SaslState(lambda: listener, bearer)
    assert sasl.handshake(mechanism, None) == 0  # type: ignore[arg-type]
    with pytest.raises(Rejected) as refused:
        asyncio.run(sasl.authenticate(b"\0a\0" + b"b" * 20_500, 0))
    assert refused.value.code is ErrorCode.sasl_authentication_failed
    assert sasl.has_failed
    assert sasl.why == "a message of 20503 bytes; accepted: 20480"
