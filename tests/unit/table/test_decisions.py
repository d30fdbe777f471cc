"""The sink's decisions on a real broker: the newest of many, removed ones, and records that are none."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from stratalog.adapters.network import TcpNetwork
from stratalog.client.aio import Client
from stratalog.client.calls import TOPIC
from stratalog.errors import UserError
from stratalog.table import decisions as module
from stratalog.table.decisions import Decision, Decisions, Prepared, decode_decision
from stratalog.testing import TemporaryBroker

ONE = (Prepared(0, 0, 1, 0),)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with TemporaryBroker() as broker:
        yield broker.address


def on_client(address: str, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def with_client() -> Any:
        async with await Client.connect(TcpNetwork(), address) as client:
            return await work(client)

    return asyncio.run(with_client())


def on(address: str, topic: str, work: Callable[[Decisions], Awaitable[Any]]) -> Any:
    return on_client(address, lambda client: work(Decisions(client, topic)))


def test_the_newest_decision_is_found_behind_those_of_many_other_queries(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SPAN", 2)

    async def story(decisions: Decisions) -> None:
        assert await decisions.newest("a") is None, "the topic is not there yet"
        await decisions.write(Decision("a", 7, "p", ONE))
        await decisions.write(Decision("ab", 99, "p", ONE))
        for batch in range(30):
            await decisions.write(Decision("b", batch, "p", ONE))
        assert await decisions.newest("a") == Decision("a", 7, "p", ONE)
        assert await decisions.newest("b") == Decision("b", 29, "p", ONE)
        assert await decisions.newest("c") is None

    on(address, "many", story)


def test_an_ended_decision_replaces_its_record_and_a_removed_one_is_gone(address: str) -> None:
    async def story(decisions: Decisions) -> None:
        first, second = Decision("a", 100, "p", ONE), Decision("a", 101, "p", ONE)
        await decisions.write(Decision("a", 0, "p", ONE))
        await decisions.write(first)
        await decisions.write_ended(first)
        assert await decisions.newest("a") == replace(first, is_ended=True)
        await decisions.write(second)
        await decisions.remove(second)
        assert await decisions.newest("a") == replace(first, is_ended=True)
        await decisions.remove(first)
        assert await decisions.newest("a") is None, "batch 0 went when batch 100 ended"

    on(address, "few", story)


def test_the_topic_is_compacted(address: str) -> None:
    async def story(client: Client) -> str | None:
        await Decisions(client, "made").write(Decision("a", 0, "p", ONE))
        (found,) = await client.describe_configs([(TOPIC, "made")])
        return next(one.value for one in found.entries if one.name == "cleanup.policy")

    assert on_client(address, story) == "compact"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{}", "is no decision"),
        (b"x", "is no decision"),
        (b'{"format":1,"prefix":"p","ended":true,"transactions":[[1]]}', "is no decision"),
        (b'{"format":2}', "a newer sink wrote it"),
    ],
)
def test_a_record_that_is_no_decision_is_one_line(value: bytes, says: str) -> None:
    with pytest.raises(UserError, match=says):
        decode_decision(b"query/1", value)
