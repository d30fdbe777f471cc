"""A bug in the door, or of its library, costs the connections that met it: the handlers serve all others."""

import asyncio
import resource
import socket

import pytest
from tests.integration.test_small_fetches import fetch
from tests.integration.test_small_requests import (
    COMPILED,
    answers_of,
    compiled,
    lend,
    small,
    wait_until,
)
from tests.wire_client import Wire

from stratalog.adapters.compiled_door import _FAILED as FAILED
from stratalog.adapters.compiled_door import load, open_door
from stratalog.broker.small_fetches import SmallFetches
from stratalog.broker.small_requests import SmallRequests
from stratalog.testing import TemporaryBroker

__all__ = ["compiled"]
FETCH_VERSION = 11


def lender_of(broker: TemporaryBroker) -> SmallRequests:
    return broker._node._connections._shared.lender


class Buggy:
    """The door's library, of which one function reports a panic from now on."""

    def __init__(self, library, function: str) -> None:
        self._library = library
        self._function = function
        self.called = 0

    def __getattr__(self, name: str):
        if name != self._function:
            return getattr(self._library, name)

        def failed(*_arguments) -> int:
            self.called += 1
            return FAILED

        return failed


@pytest.mark.parametrize("function", ["door_read", "door_send", "door_refuse", "door_give_back"])
def test_a_bug_in_the_crate_ends_its_connections_and_the_handlers_serve_all_others(
    function, caplog
):
    with TemporaryBroker(COMPILED) as broker, Wire(broker.address) as wire:
        wire.topic_id("t")
        lend(broker, wire)
        door = lender_of(broker)._door
        door._call = buggy = Buggy(door._call, function)
        with pytest.raises(ConnectionError):
            [wire.produce("t", small(), acks=acks) for acks in (1, 2, 2)]  # handlers serve acks=2
        assert buggy.called == 1
        with Wire(broker.address) as again:
            assert answers_of(again, 10) == [0] * 10
            assert not lender_of(broker)._connections, "the door borrows no other connection"
        wait_until(lambda: not broker._node.broker.client_memory.requests, "nothing is in memory")
    assert "the door has a bug" in caplog.text


def test_a_bug_in_a_turn_ends_its_connections_and_the_handlers_serve_all_others(caplog):
    def broken(_groups):
        raise ZeroDivisionError

    with TemporaryBroker(COMPILED) as broker, Wire(broker.address) as wire:
        wire.topic_id("t")
        lend(broker, wire)
        lender_of(broker)._door._decide = broken
        with pytest.raises(ConnectionError):
            wire.produce("t", small(), acks=1)
        with Wire(broker.address) as again:
            assert answers_of(again, 10) == [0] * 10
            assert not lender_of(broker)._connections
    assert "ZeroDivisionError" in caplog.text


def test_a_bug_in_deciding_rows_ends_the_connections_that_met_it(monkeypatch, capfd):
    def broken(self, hosted, rows, wall_ms):
        raise ZeroDivisionError

    with TemporaryBroker(COMPILED) as broker:
        with Wire(broker.address) as wire:
            wire.topic_id("t")
            lend(broker, wire)
            with monkeypatch.context() as patch:
                patch.setattr(SmallRequests, "_unfit", broken)
                with pytest.raises(ConnectionError):
                    wire.produce("t", small())
        with Wire(broker.address) as again:
            assert answers_of(again, 10) == [0] * 10
            lend(broker, again)
    assert "ZeroDivisionError" in "".join(capfd.readouterr())


def test_a_bug_in_beginning_a_fetch_is_logged_and_its_connection_served_by_the_handlers(
    monkeypatch, capfd
):
    met = []

    def broken(self, received, session, times):
        met.append(times)
        raise ZeroDivisionError

    with TemporaryBroker(COMPILED) as broker, Wire(broker.address) as wire:
        wire.topic_id("t")
        wait_until(lambda: wire.produce("t", small()).error_code == 0, "the topic is there")
        lender = lender_of(broker)
        for _ in range(2):
            assert wire.ask(FETCH_VERSION, fetch("t", 1, max_wait_ms=1)).error_code == 0
        wait_until(lambda: lender._connections, "the connection is lent")
        with monkeypatch.context() as patch:
            patch.setattr(SmallFetches, "_handled", broken)
            assert wire.ask(FETCH_VERSION, fetch("t", 1, max_wait_ms=1)).error_code == 0
        assert met == [1]
        assert not lender._connections
    assert "ZeroDivisionError" in "".join(capfd.readouterr())


def test_a_door_that_is_closed_before_its_connections_gives_them_back_empty():
    ours, theirs = socket.socketpair()

    async def story() -> None:
        transport, _protocol = await asyncio.get_running_loop().create_connection(
            asyncio.Protocol, sock=ours
        )
        door = open_door()
        door.open(lambda _groups: (), lambda _rows: None, lambda _connection: None)
        loan = door.borrow(transport, "me")
        assert loan >= 0
        theirs.sendall(b"some bytes")
        door.close()
        door.close()
        assert door.bytes_held == 0
        assert door.give_back(loan) == ([], b"")
        assert door.borrow(transport, "me") == -1
        door.deliver([loan], bytes(20))
        door.refuse(0)
        door.drop(0)
        transport.close()

    asyncio.run(story())
    theirs.close()


def test_a_library_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr("stratalog.adapters.compiled_door._INTERFACE", 1)
    assert open_door() is None


def test_a_missing_or_damaged_library_is_not_used(tmp_path):
    assert load(tmp_path / "missing.so") is None
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"\x7fELF" + bytes(100))
    assert load(damaged) is None


def test_a_system_without_descriptors_has_no_door():
    made = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        while (door := open_door()) is not None:
            made.append(door)
            assert len(made) < 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for door in made:
            door.close()
    assert made
