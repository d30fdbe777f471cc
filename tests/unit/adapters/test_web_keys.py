"""Tokens before a login: what is refused before it is parsed, and what no header can break."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import jwt
import pytest
from tests.integration.issuer import Issuer

from stratalog.adapters.web_keys import WebKeys


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    made = Issuer(tmp_path_factory.mktemp("issuer"))
    made.add("second", is_rsa=False)
    return made


def keys_of(issuer: Issuer) -> WebKeys:
    return WebKeys(issuer.keys.read_bytes())


def with_header(token: str, header: Any) -> str:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return f"{urlsafe_b64encode(text).rstrip(b'=').decode()}.{token.partition('.')[2]}"


def test_a_signed_token_has_its_claims_by_each_kind_of_key(issuer: Issuer) -> None:
    keys = keys_of(issuer)
    for key, algorithm in (("first", "RS256"), ("second", "ES256")):
        assert keys.claims(issuer.token(key, sub="alice"))["sub"] == "alice"
        unnamed = jwt.encode(issuer.claims(sub="bob"), issuer.private[key], algorithm)
        assert keys.claims(unnamed)["sub"] == "bob"


def test_a_token_of_an_unknown_key_asks_for_other_keys_and_a_malformed_one_does_not(
    issuer: Issuer,
) -> None:
    keys = keys_of(issuer)
    with pytest.raises(LookupError):
        keys.claims(with_header(issuer.token(), {"alg": "RS256", "kid": "third"}))
    for token in (
        "",
        ".",
        "..",
        "...",
        "a.b",
        "a.b.c.d",
        "é.b.c",
        issuer.token() + ".x",
    ):
        with pytest.raises(ValueError, match=r".+"):
            keys.claims(token)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": ["RS256"]},
        {"alg": {}},
        {"alg": None},
        {"alg": 1},
        {},
        [],
        "RS256",
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "RS256", "crit": []},
        {"alg": "RS256", "kid": [1]},
        {"alg": "RS256", "kid": {}},
        b"[" * 3000,
        b"\xff",
        b"{",
    ],
)
def test_a_header_of_any_shape_is_refused(issuer: Issuer, header: Any) -> None:
    with pytest.raises((ValueError, LookupError)):
        keys_of(issuer).claims(with_header(issuer.token(), header))


def test_a_header_is_bounded(issuer: Issuer) -> None:
    keys = keys_of(issuer)
    assert keys.claims(issuer.token(headers={"x": "y" * 2000}))
    with pytest.raises(ValueError, match="header is too long"):
        keys.claims(issuer.token(headers={"x": "y" * 4000}))
