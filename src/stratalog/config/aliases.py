"""Translate other names of settings into this project's: Confluent's for tiered storage, and our own former ones.

In: settings by such names, as text. Out: the same settings by our names, and one line of warning for each. A setting
that is given by its present name wins.

The names are Confluent Platform's `confluent.tier.*`; `docs/settings.md` lists the supported ones. Confluent names a
bucket by several settings, and this project by one URL.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, overload
from urllib.parse import urlencode

from stratalog.config.shown import shown
from stratalog.errors import UserError

__all__ = [
    "BROKER_ALIASES",
    "BUCKET_ALIASES",
    "TOPIC_ALIASES",
    "our_names",
    "our_topic_setting",
]

Chosen = Mapping[str, tuple[str, str]]
"""Each setting's text and source."""
_TIER: Final = "confluent.tier."
_FEATURE: Final = "confluent.tier.feature"
_URL: Final = "tier.url"

BROKER_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "confluent.tier.archiver.num.threads": "remote.log.manager.copier.thread.pool.size",
        "confluent.tier.enable": "tier.enable",
        "confluent.tier.fetcher.num.threads": "remote.log.reader.threads",
        "confluent.tier.local.hotset.bytes": "log.local.retention.bytes",
        "confluent.tier.local.hotset.ms": "log.local.retention.ms",
        "console.listener": "monitor.listener",  # its name until the web console came
    }
)
TOPIC_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "confluent.tier.enable": "remote.storage.enable",
        "confluent.tier.local.hotset.bytes": "local.retention.bytes",
        "confluent.tier.local.hotset.ms": "local.retention.ms",
    }
)
# Backend: the scheme of our URL, and the settings that name the bucket and a prefix in it.
_BACKENDS: Final = {
    "s3": ("s3", "s3.bucket", "s3.prefix"),
    "gcs": ("gs", "gcs.bucket", "gcs.prefix"),
    "azureblockblob": ("az", "azure.block.blob.container", "azure.block.blob.prefix"),
}
_S3_QUERY: Final = {"s3.region": "region", "s3.aws.endpoint.override": "endpoint"}
BUCKET_ALIASES: Final = tuple(
    sorted(
        _TIER + name
        for name in (
            "feature",
            "backend",
            *_S3_QUERY,
            *(name for _scheme, *names in _BACKENDS.values() for name in names),
        )
    )
)
_UNLIMITED: Final = "-1"
_SAME_AS_TOTAL: Final = "-2"


def our_names(chosen: Chosen) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Return the settings with Confluent's and former names replaced, and a warning for each.

    Raises UserError, one line, where they name no usable bucket.
    """
    ours = {
        name: given
        for name, given in chosen.items()
        if name not in BROKER_ALIASES and name not in BUCKET_ALIASES
    }
    is_off = chosen.get(_FEATURE, ("true", ""))[0].strip().lower() != "true"
    lines = []
    for name, (text, source) in chosen.items():
        origin = f"{name} (from the {source})"
        stands_for = _URL if name in BUCKET_ALIASES else BROKER_ALIASES.get(name)
        if stands_for is None:
            continue
        if stands_for in chosen:
            lines.append(f"{origin} yields to {stands_for}")
        elif stands_for == _URL and is_off:
            lines.append(f"{origin} has no effect, for {_FEATURE} is not true")
        else:
            value = _bucket_url(chosen) if stands_for == _URL else _value(name, text)
            lines.append(f"{origin} stands for {stands_for}={value}")
            ours[stands_for] = (value, source)
    return ours, lines


@overload
def our_topic_setting(name: str, value: str) -> tuple[str, str]: ...
@overload
def our_topic_setting(name: str, value: str | None) -> tuple[str, str | None]: ...
def our_topic_setting(name: str, value: str | None) -> tuple[str, str | None]:
    """Return a topic's setting by our name; settings that are not Confluent's stay unchanged.

    A value of None (to unset it) stays None.
    """
    if name not in TOPIC_ALIASES:
        return name, value
    return TOPIC_ALIASES[name], None if value is None else _value(name, value)


def _value(name: str, text: str) -> str:
    """Translate the value: Confluent's -1 keeps everything, which is -2 in this project."""
    return _SAME_AS_TOTAL if ".hotset." in name and text.strip() == _UNLIMITED else text


def _bucket_url(chosen: Chosen) -> str:
    def given(name: str) -> str:
        return chosen.get(_TIER + name, ("", ""))[0].strip()

    backend = given("backend") or "S3"
    if backend.lower() not in _BACKENDS:
        raise UserError(
            f"{_TIER}backend: {backend!r} is not accepted; accepted: S3, GCS, AzureBlockBlob"
        )
    scheme, bucket, prefix = _BACKENDS[backend.lower()]
    if not given(bucket):
        raise UserError(f"{_TIER}{bucket} is not set; accepted: the name of a bucket")
    endpoint = given("s3.aws.endpoint.override")
    if "@" in endpoint:
        raise UserError(
            f"{_TIER}s3.aws.endpoint.override: {shown(endpoint)!r} is not accepted; accepted: a URL without a user name"
        )
    query = {query: given(name) for name, query in _S3_QUERY.items() if given(name)}
    path = f"/{given(prefix).strip('/')}" if given(prefix).strip("/") else ""
    query_string = f"?{urlencode(query, safe=':/')}" if query and scheme == "s3" else ""
    return f"{scheme}://{given(bucket)}{path}{query_string}"
