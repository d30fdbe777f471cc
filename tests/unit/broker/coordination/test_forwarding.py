"""Goal: an envelope names its client as Kafka's does. Method: Kafka's bytes, and damaged ones."""

import pytest

from stratalog.broker.coordination.forwarding import (
    decode_principal,
    encode_principal,
    forwarded_session,
)
from stratalog.broker.network.session import ANONYMOUS, ListenerContext, Principal, Session
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.apis import ListenerKind

ALICE = b"\x00\x00" + b"\x05User" + b"\x06alice" + b"\x00" + b"\x00"
"""DefaultPrincipalData: version, type, name, whether a delegation token authenticated it, tags."""
AROUND = Session(ListenerContext("CONTROLLER", ListenerKind.CONTROLLER), "10.0.0.1")


def test_a_principal_is_written_as_kafka_writes_it() -> None:
    assert encode_principal(Principal("User", "alice")) == ALICE
    for principal in (Principal("User", "alice"), ANONYMOUS, Principal("Ünit", "x" * 300)):
        for by_token in (False, True):
            data = encode_principal(principal, by_token=by_token)
            assert decode_principal(data) == (principal, by_token)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x00", b"\x00\x01" + ALICE[2:], *(ALICE[:end] for end in range(2, len(ALICE) - 1))],
)
def test_damaged_principals_are_refused(data: bytes) -> None:
    with pytest.raises(Rejected) as refused:
        forwarded_session(AROUND, data, b"\x7f\x00\x00\x01")
    assert refused.value.code is ErrorCode.principal_deserialization_failure


def test_an_envelopes_session_is_that_of_its_client() -> None:
    session = forwarded_session(AROUND, ALICE, b"\x0a\x01\x02\x03")
    assert (session.principal, session.host) == (Principal("User", "alice"), "10.1.2.3")
    assert session.listener == AROUND.listener
    assert session.may_handle_tokens
    by_token = forwarded_session(AROUND, ALICE[:-2] + b"\x01\x00", b"\x0a\x01\x02\x03")
    assert (by_token.by_token, by_token.may_handle_tokens) == (True, False)
    assert forwarded_session(AROUND, ALICE, bytes(15) + b"\x01").host == "0:0:0:0:0:0:0:1"
    for address in (b"", b"\x01", bytes(5)):
        with pytest.raises(Rejected) as refused:
            forwarded_session(AROUND, ALICE, address)
        assert refused.value.code is ErrorCode.invalid_request
