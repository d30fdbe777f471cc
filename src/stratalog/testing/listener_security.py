"""The security of a test broker's listener: TLS with an authority of its own, and users with passwords.

In: whether clients use TLS, users with passwords. Out: settings by Kafka's names, and the users' credentials in a new
log directory. It is for tests: passwords are in the settings.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from stratalog.adapters.scratch import ScratchDirectory
from stratalog.adapters.system import SystemClock, SystemEntropy
from stratalog.broker.storage.bootstrap_file import write_first_users
from stratalog.errors import UserError
from stratalog.ports import Disk
from stratalog.quorum.scram_credentials import Upsertion, credential_record
from stratalog.wire.scram import MECHANISMS, salted_password

if TYPE_CHECKING:
    from stratalog.testing.certificates import Authority

__all__ = ["ListenerSecurity"]

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_ITERATIONS: Final = 4096
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"


class ListenerSecurity:
    """The settings of one listener, named after its protocol."""

    def __init__(self, *, tls: bool, users: Mapping[str, str]) -> None:
        """Raises UserError for a user that cannot log in."""
        for name, password in users.items():
            if not _NAME.fullmatch(name):
                raise UserError(
                    f"users: {name!r} is not accepted; accepted: letters, digits, . _ -"
                )
            if not password or not password.isprintable():
                raise UserError(f"users: the password of {name!r} is empty or not printable")
        self._has_tls = tls
        self._users = dict(users)
        self._keys: ScratchDirectory | None = None
        self._authority: Authority | None = None

    @property
    def protocol(self) -> str:
        """Kafka's name of the security protocol."""
        if self._users:
            return "SASL_SSL" if self._has_tls else "SASL_PLAINTEXT"
        return "SSL" if self._has_tls else "PLAINTEXT"

    @property
    def is_any(self) -> bool:
        """Whether clients use TLS or log in."""
        return self._has_tls or self.has_users

    @property
    def has_users(self) -> bool:
        """Whether clients log in."""
        return bool(self._users)

    @property
    def authority(self) -> "Authority":
        """The authority of the broker's certificate."""
        assert self._authority is not None, "a broker with tls=True, started"
        return self._authority

    def settings(self) -> dict[str, str]:
        """Return the settings, after making keys where TLS needs them. Clients may show a certificate."""
        return {**self._tls(), **self._logins()}

    def _tls(self) -> dict[str, str]:
        if not self._has_tls:
            return {}
        if self._authority is None:
            from stratalog.testing.certificates import Authority  # noqa: PLC0415 - few tests

            self._keys = ScratchDirectory("strata-tls-")
            self._authority = Authority(self._keys.path)
        return {
            "ssl.keystore.location": str(self._authority.issue("broker").pem),
            "ssl.truststore.location": str(self._authority.certificate),
            "ssl.client.auth": "requested",
        }

    def _logins(self) -> dict[str, str]:
        if not self._users:
            return {}
        options = " ".join(
            f'user_{name}="{_quoted(password)}"' for name, password in self._users.items()
        )
        return {
            "sasl.enabled.mechanisms": ",".join(["PLAIN", *MECHANISMS]),
            "connection.failed.authentication.delay.ms": "0",
            f"listener.name.{self.protocol.lower()}.plain.sasl.jaas.config": f"{_MODULE} required {options};",
        }

    def write_users(self, disk: Disk) -> None:
        """Write the users' credentials of SCRAM into a new log directory."""
        entropy = SystemEntropy()
        records = []
        for name, password in self._users.items():
            for number, hash_name in MECHANISMS.values():
                salt = entropy.uuid().bytes
                salted = salted_password(hash_name, password, salt, _ITERATIONS)
                records.append(
                    credential_record(Upsertion(name, number, _ITERATIONS, salt, salted))
                )
        if records:
            write_first_users(disk, records, SystemClock().now_ms())

    def remove(self) -> None:
        """Remove the keys."""
        if self._keys is not None:
            self._keys.remove()
            self._keys = self._authority = None


def _quoted(password: str) -> str:
    """Return a password for JAAS's double quotes."""
    return password.replace("\\", "\\\\").replace('"', '\\"')
