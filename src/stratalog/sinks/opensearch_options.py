"""Parse the options of `.format("stratalog_opensearch")`, once.

In: Spark's options, all text. Out: `OpenSearchOptions`, or a BadOption of one line. It never connects to anything.

`hosts`, `index`, `worker`, `bulk_max_size`, `backoff.…`, `max_retries` and `timeout` have the names of Filebeat's
output; the settings of an index have OpenSearch's own. User and password are not options, because Spark's plans would
show them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from stratalog.config.named_options import named_options, positive, seconds, whole
from stratalog.errors import BadOption

__all__ = ["OPENSEARCH_OPTIONS", "SHARDS", "OpenSearchOptions", "parse_opensearch_options"]

PAGE = "docs/opensearch.md"
PORT = 9200

SHARDS = "index.number_of_shards"
_REPLICAS = "index.number_of_replicas"
_REFRESH = "index.refresh_interval"
_DEFAULTS = {
    "hosts": "",
    "index": "",
    SHARDS: "",
    _REPLICAS: "",
    _REFRESH: "",
    "worker": "1",
    "bulk_max_size": "1600",
    "dead_letter_index": "",
    "max_retries": "10",
    "backoff.init": "1s",
    "backoff.max": "60s",
    "timeout": "90s",
}
OPENSEARCH_OPTIONS = tuple(_DEFAULTS)
_SECRETS = {
    "username": "OPENSEARCH_USERNAME",
    "password": "OPENSEARCH_PASSWORD",
    "ssl.certificate_authorities": "OPENSEARCH_CA_FILE",
}

_INDEX = re.compile(r"[^A-Z\\/*?\"<>| ,#:_+\-.][^A-Z\\/*?\"<>| ,#:]*")
_REFRESH_INTERVAL = re.compile(r"-1|\d+(ms|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class OpenSearchOptions:
    """`hosts`: addresses with scheme and port. `settings`: requested settings of the index, by name.

    `worker`: bulk requests in flight in each task. `bulk_max_size`: most documents in one of them. `dead_letter_index`:
    None fails the task at the first document that the index refuses.
    """

    hosts: tuple[str, ...]
    index: str
    settings: Mapping[str, str]
    worker: int
    bulk_max_size: int
    dead_letter_index: str | None
    retries_max: int
    backoff_init_s: float
    backoff_max_s: float
    timeout_s: float


def parse_opensearch_options(given: Mapping[str, str]) -> OpenSearchOptions:
    """Parse and check everything. Raises BadOption."""
    for name in given:
        if variable := _SECRETS.get(name.lower()):
            raise BadOption(
                f"option '{name}' would be in Spark's plans: set {variable} in the environment of driver and executors"
            )
    options = named_options(given, _DEFAULTS, page=PAGE)
    for name in ("hosts", "index"):
        if not options[name].strip():
            raise BadOption(f"option '{name}' must say where to write (see {PAGE})")
    return OpenSearchOptions(
        hosts=_hosts(options["hosts"]),
        index=_index(options, "index"),
        settings=_settings(options),
        worker=positive(options, "worker"),
        bulk_max_size=positive(options, "bulk_max_size"),
        dead_letter_index=_index(options, "dead_letter_index") or None,
        retries_max=whole(options, "max_retries"),
        backoff_init_s=seconds(options, "backoff.init"),
        backoff_max_s=seconds(options, "backoff.max"),
        timeout_s=seconds(options, "timeout"),
    )


def _hosts(text: str) -> tuple[str, ...]:
    """Parse comma-separated addresses: `search`, `search:9200`, `https://search:9200`."""
    hosts = []
    for one in filter(None, (item.strip() for item in text.split(","))):
        parts = urlsplit(one if "://" in one else f"http://{one}")
        if parts.username is not None or parts.password is not None:
            raise BadOption(
                "option 'hosts': user and password belong in OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD, not in a plan"
            )
        try:
            port = parts.port or PORT
        except ValueError:
            port = 0
        plain = not (parts.path.strip("/") or parts.query or parts.fragment)
        if parts.scheme not in {"http", "https"} or not parts.hostname or not port or not plain:
            raise BadOption(
                f"option 'hosts' has {one!r}: http://host:port or https://host:port is needed"
            )
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        hosts.append(f"{parts.scheme}://{name}:{port}")
    if not hosts:
        raise BadOption("option 'hosts' names none: http://host:port is needed")
    return tuple(hosts)


def _index(options: Mapping[str, str], name: str) -> str:
    index = options[name].strip()
    if index and (not _INDEX.fullmatch(index) or len(index.encode()) > 255):
        raise BadOption(
            f"option '{name}' is {index!r}: OpenSearch wants lower case, none of \\ / * ? \" < > | , # : or blanks, "
            "and no _ - + . in front"
        )
    return index


def _settings(options: Mapping[str, str]) -> Mapping[str, str]:
    settings = {}
    if options[SHARDS].strip():
        settings[SHARDS] = str(positive(options, SHARDS))
    if options[_REPLICAS].strip():
        settings[_REPLICAS] = str(whole(options, _REPLICAS))
    if interval := options[_REFRESH].strip():
        if not _REFRESH_INTERVAL.fullmatch(interval):
            raise BadOption(
                f"option '{_REFRESH}' is {interval!r}: 30s, 500ms, 1m … or -1 is needed"
            )
        settings[_REFRESH] = interval
    return settings
