"""Listeners whose TLS settings cannot be met do not start, and one line says why."""

from pathlib import Path

import pytest
from tests.integration.test_tls import settings

from stratalog.errors import UserError
from stratalog.testing.broker import TemporaryBroker
from stratalog.testing.certificates import Authority

NOT_STARTED = {
    "a missing file": ({"ssl.keystore.location": "/none.pem"}, "/none.pem: No such file"),
    "no key": ({"ssl.keystore.location": ""}, "ssl.keystore.location is not set"),
    "no authority for clients": (
        {"ssl.truststore.location": ""},
        "'required' needs the authorities",
    ),
    "an unknown suite": ({"ssl.cipher.suites": "TLS_NONE"}, "'TLS_NONE' is not accepted"),
    "an unknown demand": ({"ssl.client.auth": "maybe"}, "one of required, requested, none"),
    "an old version": ({"ssl.enabled.protocols": "TLSv1"}, "items of TLSv1.2, TLSv1.3"),
    "a rule of no form": ({"ssl.principal.mapping.rules": "x"}, "RULE:pattern"),
}


@pytest.mark.parametrize("case", NOT_STARTED)
def test_a_listener_that_cannot_be_secured_as_configured_does_not_start(
    tmp_path: Path, case: str
) -> None:
    authority = Authority(tmp_path / "ca")
    change, message = NOT_STARTED[case]
    with pytest.raises(UserError, match=message):
        TemporaryBroker(settings(authority, authority.issue("server")) | change).start()
