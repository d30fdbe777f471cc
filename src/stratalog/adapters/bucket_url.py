"""A cloud bucket's URL and what may be set in its query.

In: a URL's text, the environment. Out: a `BucketUrl`. It asks nobody, and no key is ever part of a URL: URLs are
printed. Raises UserError in one line for what is none, without repeating a query.

One URL says all there is to say about a store, so a broker's `tier.url`, a command's argument and a Spark option are
the same text. `docs/stores.md` lists the settings for people.
"""

import os
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as NotIniError
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from stratalog.errors import UserError

__all__ = ["AccessKeys", "BucketUrl", "parse_bucket_url", "read_access_keys"]

_SHARED: Final = ("endpoint", "ca_file")
_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": (
        *_SHARED,
        "region",
        "virtual_hosted_style_request",
        "credentials_file",
        "profile",
        "create_bucket",
    ),
    "gs": (*_SHARED, "credentials_file"),
    "az": (*_SHARED, "account_name"),
}
_WORDS: Final = {"true": True, "false": False}
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketUrl:
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
    account_name: str | None
    ca_file: str | None
    create_bucket: bool

    @property
    def plain_http(self) -> bool:
        """Whether requests are not encrypted."""
        return self.endpoint is not None and self.endpoint.startswith("http://")


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys:
    """What signs a request to S3. Never printed."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None


def parse_bucket_url(url: str, environment: Mapping[str, str] = os.environ) -> BucketUrl:
    """The parts of an `s3://`, `gs://` or `az://` URL. Raises UserError."""
    parts = urlsplit(url)
    named = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    if parts.username is not None or parts.password is not None:
        raise UserError(f"{named}: keys belong in the environment or a file, not in the URL")
    if parts.scheme not in _SETTINGS or not parts.netloc:
        raise UserError(f"{named}: a bucket is written s3://…, gs://… or az://…")
    settings = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = _SETTINGS[parts.scheme]
    for name, value in settings.items():
        if name not in known:
            raise UserError(f"{named}: {name!r} is none of {', '.join(sorted(known))}")
        if not value:
            raise UserError(f"{named}: {name} is empty")
    ca_file = settings.get("ca_file")
    credentials_file = settings.get("credentials_file")
    endpoint = settings.get("endpoint")
    if parts.scheme == "s3":
        ca_file = ca_file or environment.get("AWS_CA_BUNDLE")
        if "AWS_ACCESS_KEY_ID" not in environment:
            credentials_file = credentials_file or environment.get("AWS_SHARED_CREDENTIALS_FILE")
        endpoint = endpoint or next(
            (environment[n] for n in _ENDPOINTS if environment.get(n)), None
        )
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise UserError(f"{named}: endpoint {endpoint!r} must begin with http:// or https://")
    return BucketUrl(
        url=url,
        scheme=parts.scheme,
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        endpoint=endpoint.rstrip("/") if endpoint else None,
        region=settings.get("region"),
        virtual_hosted=_flag(named, settings, "virtual_hosted_style_request"),
        credentials_file=_readable(named, "credentials_file", credentials_file),
        profile=settings.get("profile") or environment.get("AWS_PROFILE") or "default",
        account_name=settings.get("account_name"),
        ca_file=_readable(named, "ca_file", ca_file),
        create_bucket=_flag(named, settings, "create_bucket"),
    )


def _flag(named: str, settings: Mapping[str, str], name: str) -> bool:
    text = settings.get(name, "false").lower()
    if text not in _WORDS:
        raise UserError(f"{named}: {name}={text} is neither true nor false")
    return _WORDS[text]


def _readable(named: str, setting: str, path: str | None) -> str | None:
    if path is None:
        return None
    try:
        with open(path, "rb"):
            return path
    except OSError as error:
        raise UserError(f"{named}: {setting} {path}: {error.strerror}") from None


def read_access_keys(path: str, profile: str) -> AccessKeys:
    """The keys of a profile in a file as AWS's tools write it (`[default]`, `aws_access_key_id = …`).

    Raises UserError naming the file, never repeating its content.
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
