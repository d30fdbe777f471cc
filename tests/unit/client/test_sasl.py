"""What the client says of a refused login, without a socket: the test answers as a server would."""

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from stratalog.client.sasl import Login, log_in
from stratalog.errors import ErrorCode, Rejected
from stratalog.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from stratalog.wire.messages.sasl_handshake import SaslHandshakeResponse

PASSWORD: Final = "planted-password"
SCRAM: Final = Login("SCRAM-SHA-256", "alice", PASSWORD)
BEARER: Final = Login("OAUTHBEARER", "", "x.eyJpc3MiOiJvdGhlciIsImV4cCI6N30.y")
"""The claims of its token: iss "other", exp 7."""
FAILED: Final = ErrorCode.sasl_authentication_failed
OTHER_PASSWORD: Final = "Authentication failed: invalid credentials"
Answer = Callable[[bytes], SaslAuthenticateResponse]
"""Makes the server's answer from the bytes that the client sent."""


def said(data: bytes = b"", error: int = 0, message: str | None = None) -> Answer:
    return lambda _sent: SaslAuthenticateResponse(
        error_code=error, error_message=message, auth_bytes=data
    )


def challenge(
    sent: bytes, *, nonce: str = "more", salt: str = "c2FsdA==", rounds: str = "4096"
) -> SaslAuthenticateResponse:
    own = sent.decode().partition("r=")[2].partition(",")[0]
    first = f"r={own if nonce == 'more' else ''}{nonce},s={salt},i={rounds}"
    return said(first.encode())(sent)


def refusal(login: Login, shaken: SaslHandshakeResponse, *answers: Answer) -> Rejected:
    """Return what the client raises after these answers."""

    def run() -> None:
        steps = log_in(login)
        next(steps)
        call = steps.send(shaken)
        for answer in answers:
            call = steps.send(answer(call.build(2).auth_bytes))

    with pytest.raises(Rejected) as refused:
        run()
    for place in (str(refused.value), repr(login)):
        assert PASSWORD not in place
        assert BEARER.password not in place
    return refused.value


def shaken(error: int = 0, *mechanisms: str) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error, mechanisms=list(mechanisms))


@pytest.mark.parametrize(
    ("login", "code", "mechanisms", "line"),
    [
        (
            SCRAM,
            33,
            ("PLAIN", "X"),
            "the listener has no SASL mechanism SCRAM-SHA-256; it has: PLAIN, X",
        ),
        (BEARER, 33, (), "the listener has no SASL mechanism OAUTHBEARER; it has: none"),
        (SCRAM, 34, (), "the listener refuses SASL"),
    ],
)
def test_a_refused_mechanism_is_named_with_those_of_the_listener(
    login: Login, code: int, mechanisms: tuple[str, ...], line: str
) -> None:
    error = refusal(login, shaken(code, *mechanisms))
    assert (error.code, error.message) == (ErrorCode(code), line)


@pytest.mark.parametrize(
    ("answers", "line"),
    [
        ((said(error=58, message=OTHER_PASSWORD),), OTHER_PASSWORD),
        ((said(error=58),), "the login is refused"),
        ((said(b"r=x"),), "the server's SCRAM message cannot be used: 's'"),
        ((said(b"\xff"),), "the server's SCRAM message cannot be used: 'utf-8'"),
        ((partial(challenge, nonce="new"),), "message cannot be used: another nonce"),
        ((partial(challenge, rounds="4095"),), "message cannot be used: 4095 iterations"),
        ((partial(challenge, rounds="1000001"),), "message cannot be used: 1000001 iterations"),
        ((challenge, said(b"v=c2FsdA==")), "the server does not know the password that it accepts"),
        ((challenge, said()), "the server does not know the password that it accepts"),
        ((challenge, said(error=58, message=OTHER_PASSWORD)), OTHER_PASSWORD),
    ],
)
def test_a_refused_password_and_a_false_server_differ(
    answers: tuple[Answer, ...], line: str
) -> None:
    error = refusal(SCRAM, shaken(), *answers)
    assert error.code is FAILED
    assert line in error.message
    assert "token" not in error.message


@pytest.mark.parametrize(
    "answers",
    [
        (said(error=58, message=OTHER_PASSWORD),),
        (challenge, said(error=58, message=OTHER_PASSWORD)),
    ],
)
def test_a_refused_delegation_token_has_its_remedy(answers: tuple[Answer, ...]) -> None:
    login = Login("SCRAM-SHA-256", "id", PASSWORD, by_token=True)
    error = refusal(login, shaken(), *answers)
    assert error.code is FAILED
    remedy = "the delegation token may have ended; its owner sees it with strata token list"
    assert error.message == f"{OTHER_PASSWORD}; {remedy}"


CLAIMS: Final = (
    "the token has iss 'other', aud None, sub None, exp 7; "
    "compare sasl.oauthbearer.expected.* of the brokers, and the clocks"
)


@pytest.mark.parametrize(
    ("answers", "said_first"),
    [
        (
            (said(b'{"status":"invalid_token"}'), said(error=58, message=OTHER_PASSWORD)),
            OTHER_PASSWORD,
        ),
        ((said(b'{"status":"invalid_token"}'), said(error=58)), "the login is refused"),
        ((said(b'{"status":"invalid_token"}'), said()), "the token is refused"),
    ],
)
def test_a_refused_token_is_shown_by_its_claims(
    answers: tuple[Answer, ...], said_first: str
) -> None:
    error = refusal(BEARER, shaken(), *answers)
    assert (error.code, error.message) == (FAILED, f"{said_first}; {CLAIMS}")


@pytest.mark.parametrize("token", ["", "a", "a.b", "a.!.c", "a.W10.c", "a.MQ.c", "a.gQ.c"])
def test_a_token_that_is_no_json_web_token_is_named_so(token: str) -> None:
    login = Login("OAUTHBEARER", "", token)
    error = refusal(login, shaken(), said(b"{}"), said(error=58, message="no"))
    assert error.message == "no; it is no JSON Web Token"
