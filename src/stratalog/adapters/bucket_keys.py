"""Find the keys of a cloud's bucket: in a file, in the environment, or in the machine's role; and the key that
encrypts its objects.

In: a parsed URL, the environment, a file. Out: the source of the keys, for messages; the keys of a file. It never
prints a key, and never asks a cloud's metadata service.
"""

import binascii
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as NotIniError
from dataclasses import dataclass
from typing import Final

from stratalog.adapters.bucket_url import BucketUrl
from stratalog.errors import NotInEnvironment, UserError
from stratalog.ports import Secret

__all__ = ["AccessKeys", "find_keys", "read_access_keys", "read_customer_key"]

_IN_ENVIRONMENT: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
        ("AWS_SKIP_SIGNATURE",),
    ),
    "gs": (
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        ("GOOGLE_SERVICE_ACCOUNT",),
        ("GOOGLE_SERVICE_ACCOUNT_PATH",),
        ("GOOGLE_SERVICE_ACCOUNT_KEY",),
        ("GOOGLE_SKIP_SIGNATURE",),
    ),
    "az": (
        ("AZURE_STORAGE_ACCOUNT_KEY",),
        ("AZURE_STORAGE_ACCESS_KEY",),
        ("AZURE_STORAGE_SAS_KEY",),
        ("AZURE_STORAGE_SAS_TOKEN",),
        ("AZURE_STORAGE_TOKEN",),
        ("AZURE_STORAGE_CLIENT_ID", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_STORAGE_TENANT_ID"),
        ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
        ("AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE", "AZURE_TENANT_ID"),
        ("AZURE_USE_AZURE_CLI",),
        ("AZURE_SKIP_SIGNATURE",),
    ),
}
"""Environment variables from which obstore takes keys before it asks a metadata service; each row needs all of its
variables.
"""
_FLAGS: Final = (
    "AWS_SKIP_SIGNATURE",
    "GOOGLE_SKIP_SIGNATURE",
    "AZURE_USE_AZURE_CLI",
    "AZURE_SKIP_SIGNATURE",
)
_GCLOUD_FILE: Final = ".config/gcloud/application_default_credentials.json"
_CUSTOMER_KEY_BYTES: Final = 32
_REMEDIES: Final[Mapping[str, str]] = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file of keys with credentials_file in the URL or "
    "with AWS_SHARED_CREDENTIALS_FILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or name a service account's file with credentials_file in the URL",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY",
}


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys(Secret):
    """The keys that sign a request to S3. Never printed."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None


def find_keys(at: BucketUrl, environment: Mapping[str, str] = os.environ) -> str:
    """Return the place of the store's keys, for messages.

    Raises UserError, with the places it searched, where there are no keys. Without that error obstore would ask a
    cloud's metadata service, which only `credentials=instance` in the URL allows.
    """
    if at.credentials_file is not None:
        profile = f"profile [{at.profile}] of " if at.scheme == "s3" else ""
        return f"{profile}{at.credentials_file}"
    for names in _IN_ENVIRONMENT[at.scheme]:
        if all(_is_set(environment, name) for name in names):
            return f"{' and '.join(names)} in the environment"
    gcloud_file = os.path.join(environment.get("HOME", ""), _GCLOUD_FILE)
    if at.scheme == "gs" and os.path.exists(gcloud_file):
        return gcloud_file
    if at.machine_role:
        return "the machine's role (credentials=instance)"
    first = _IN_ENVIRONMENT[at.scheme][0]
    given = [name for name in first if _is_set(environment, name)]
    found = f" ({' and '.join(given)} alone is not enough)" if given else ""
    raise NotInEnvironment(
        f"{at.url.partition('?')[0]}: no keys are found{found}: {_REMEDIES[at.scheme]}; "
        "credentials=instance in the URL asks the cloud for the machine's role"
    )


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "")
    return value.lower() in {"1", "true", "on", "yes", "y"} if name in _FLAGS else bool(value)


def read_access_keys(path: str, profile: str) -> AccessKeys:
    """Return the keys of a profile in a file as AWS's tools write it (`[default]`, `aws_access_key_id = …`).

    Raises UserError, which names the file and repeats nothing of it.
    """
    ini = ConfigParser(interpolation=None, default_section="")
    try:
        found = ini.read(path, encoding="utf-8")
    except (NotIniError, UnicodeDecodeError):
        raise UserError(f"{path} is no file of keys: [profile], then NAME = VALUE lines") from None
    if not found or not ini.has_section(profile):
        raise UserError(f"{path} has no profile [{profile}]")
    section = ini[profile]
    for name in ("aws_access_key_id", "aws_secret_access_key"):
        if not section.get(name):
            raise UserError(f"{path}: profile [{profile}] has no {name}")
    return AccessKeys(
        section["aws_access_key_id"],
        section["aws_secret_access_key"],
        section.get("aws_session_token") or None,
    )


def read_customer_key(path: str) -> str:
    """Return the key in a file, 32 bytes or their base64, as base64.

    Raises UserError, which names the file and repeats nothing of it.
    """
    try:
        with open(path, "rb") as file:
            key = file.read(1024)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if len(key) != _CUSTOMER_KEY_BYTES:
        try:
            key = b64decode(key.strip(), validate=True)
        except binascii.Error:
            key = b""
    if len(key) != _CUSTOMER_KEY_BYTES:
        raise UserError(f"{path} holds no key: it needs 32 bytes, or their base64 in one line")
    return b64encode(key).decode()
