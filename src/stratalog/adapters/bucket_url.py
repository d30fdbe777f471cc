"""A bucket's URL: its parts and the settings in its query.

In: a URL's text, the environment. Out: a `BucketUrl`. It sends no request. A URL is printed and logged, so this module
refuses a URL that holds keys, and its errors repeat neither a query nor a user name.

One URL holds every setting of a store, so a broker's `tier.url`, a command's argument and a Spark option are the same
text. `docs/stores.md` lists the settings for people.
"""

import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from msgspec import Struct

from stratalog.config.shown import shown
from stratalog.errors import UserError

__all__ = ["BucketUrl", "parse_bucket_url", "split_url"]

_SHARED: Final = ("endpoint", "ca_file", "credentials")
_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": (
        *_SHARED,
        "region",
        "virtual_hosted_style_request",
        "credentials_file",
        "profile",
        "create_bucket",
        "sse",
        "sse_kms_key_id",
        "customer_key_file",
    ),
    "gs": (*_SHARED, "credentials_file"),
    "az": (*_SHARED, "account_name", "customer_key_file"),
}
_ENCRYPTIONS: Final = ("AES256", "aws:kms", "aws:kms:dsse")
"""How S3 encrypts an object: with its own keys, with a key of AWS KMS, with such a key twice."""
_WORDS: Final = {"true": True, "false": False}
_KEY_ID: Final = "AWS_ACCESS_KEY_ID"
_FROM_ENVIRONMENT: Final[Mapping[str, tuple[str, ...]]] = {
    "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "ca_file": ("AWS_CA_BUNDLE",),
    "credentials_file": ("AWS_SHARED_CREDENTIALS_FILE",),
    "profile": ("AWS_PROFILE",),
}
"""Environment variables for an S3 bucket, by the URL's setting; the first variable that is set counts."""
_BUCKET: Final = re.compile(r"[\w.$-]+", re.ASCII)
_ENDPOINT: Final = re.compile(
    r"https?://([\w.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?(/[\w./-]*)?", re.ASCII
)
_NO_KEYS: Final = "keys belong in the environment or a file, not in the URL"


class BucketUrl(Struct, frozen=True, kw_only=True):
    """A parsed URL. `url` is the text; `prefix` has no slash at either end; None: the library's own default."""

    url: str
    scheme: str
    bucket: str
    prefix: str
    endpoint: str | None
    region: str | None
    virtual_hosted: bool
    credentials_file: str | None
    profile: str
    machine_role: bool
    account_name: str | None
    ca_file: str | None
    create_bucket: bool
    sse: str | None
    sse_kms_key_id: str | None
    customer_key_file: str | None

    @property
    def plain_http(self) -> bool:
        """Whether requests are not encrypted."""
        return self.endpoint is not None and self.endpoint.startswith("http://")


def split_url(url: str) -> SplitResult:
    """Return the parts of a store's URL. Raises UserError for text that is no URL, or that may hold keys."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UserError(f"{shown(url)}: this is no URL") from None
    if "@" in parts.netloc:
        raise UserError(f"{shown(url)}: {_NO_KEYS}")
    if parts.fragment:
        raise UserError(f"{shown(url).partition('#')[0]}: write # as %23")
    return parts


def parse_bucket_url(url: str, environment: Mapping[str, str] = os.environ) -> BucketUrl:
    """Return the parts of an `s3://`, `gs://` or `az://` URL. Raises UserError."""
    parts = split_url(url)
    if parts.scheme not in _SETTINGS or not _BUCKET.fullmatch(parts.netloc):
        raise UserError(f"{shown(url)}: a bucket is written s3://NAME, gs://NAME or az://NAME")
    named = f"{parts.scheme}://{parts.netloc}{parts.path}"
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    accepted = _SETTINGS[parts.scheme]
    for name, value in settings.items():
        if name not in accepted:
            raise UserError(f"{named}: {name!r} is none of {', '.join(sorted(accepted))}")
        if not value:
            raise UserError(f"{named}: {name} is empty")
    if parts.scheme == "s3":
        _add_from_environment(settings, environment)
    _check_endpoint(named, settings.get("endpoint"))
    if settings.get("credentials") not in {None, "instance"}:
        raise UserError(f"{named}: credentials takes the value 'instance' and no other")
    if parts.scheme == "az" and not (
        settings.get("account_name") or environment.get("AZURE_STORAGE_ACCOUNT_NAME")
    ):
        raise UserError(f"{named}: set account_name in the URL or AZURE_STORAGE_ACCOUNT_NAME")
    _check_encryption(named, settings)
    return BucketUrl(
        url=url,
        scheme=parts.scheme,
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=settings["endpoint"].rstrip("/") if "endpoint" in settings else None,
        region=settings.get("region"),
        virtual_hosted=_flag(named, settings, "virtual_hosted_style_request"),
        credentials_file=_readable(named, settings, "credentials_file"),
        profile=settings.get("profile", "default"),
        machine_role="credentials" in settings,
        account_name=settings.get("account_name"),
        ca_file=_readable(named, settings, "ca_file"),
        create_bucket=_flag(named, settings, "create_bucket"),
        sse=settings.get("sse"),
        sse_kms_key_id=settings.get("sse_kms_key_id"),
        customer_key_file=_readable(named, settings, "customer_key_file"),
    )


def _add_from_environment(settings: dict[str, str], environment: Mapping[str, str]) -> None:
    """Add settings that the URL of an S3 bucket leaves out. Keys in the environment beat a file of keys that it
    names.
    """
    for setting, names in _FROM_ENVIRONMENT.items():
        value = next((environment[name] for name in names if environment.get(name)), None)
        if value is None or (setting == "credentials_file" and environment.get(_KEY_ID)):
            continue
        settings.setdefault(setting, value)


def _check_endpoint(named: str, endpoint: str | None) -> None:
    """Raise UserError, which does not repeat the endpoint, unless it is an address and no more."""
    if endpoint is None:
        return
    if "@" in endpoint:
        raise UserError(f"{named}: the endpoint has a user name: {_NO_KEYS}")
    if not _ENDPOINT.fullmatch(endpoint):
        raise UserError(f"{named}: the endpoint is not http://host:port or https://host:port")


def _check_encryption(named: str, settings: Mapping[str, str]) -> None:
    """Raise UserError unless the store can encrypt as the settings say. A request carries a customer's key, so it must
    itself be encrypted.
    """
    algorithm = settings.get("sse")
    if algorithm is not None and algorithm not in _ENCRYPTIONS:
        raise UserError(f"{named}: sse={algorithm} is none of {', '.join(_ENCRYPTIONS)}")
    if "sse_kms_key_id" in settings and algorithm not in _ENCRYPTIONS[1:]:
        raise UserError(f"{named}: sse_kms_key_id needs sse=aws:kms or sse=aws:kms:dsse")
    if "customer_key_file" not in settings:
        return
    if algorithm is not None:
        raise UserError(f"{named}: sse and customer_key_file exclude each other: remove one")
    if settings.get("endpoint", "").startswith("http://"):
        raise UserError(f"{named}: customer_key_file needs an https:// endpoint")


def _flag(named: str, settings: Mapping[str, str], name: str) -> bool:
    text = settings.get(name, "false").lower()
    if text not in _WORDS:
        raise UserError(f"{named}: {name}={text} is neither true nor false")
    return _WORDS[text]


def _readable(named: str, settings: Mapping[str, str], name: str) -> str | None:
    path = settings.get(name)
    if path is None:
        return None
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise UserError(f"{named}: {name} {path}: {error.strerror}") from None
