"""The search engine: an index of OpenSearch with a document for each good line.

In: a directory for an OpenSearch of our own, or `http://host:port/index` of the user's. Out: the index, whose document
ids have topic, partition and offset. Never here: the conversion of rows to documents, which `stratalog_opensearch`
does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from sinks.opensearch_server import ask, counts_by, running_opensearch
from sinks.sink import Sink, SinkPlace
from stratalog.errors import UserError

FORMAT = "stratalog_opensearch"
INDEX = "access_log"
# The reference's settings, but for its 36 shards: there is one node. No search runs before all documents are written.
OPTIONS = {
    "index.number_of_shards": "1",
    "index.number_of_replicas": "0",
    "index.refresh_interval": "30s",
    "worker": "2",
    "bulk_max_size": "4096",
}


@contextmanager
def opensearch(place: SinkPlace) -> Iterator[Sink]:
    """Open an index, which must be empty."""
    if place.url is None:
        with running_opensearch(place.root) as server:
            yield _sink(server.url, INDEX, OPTIONS)
        return
    parts = urlsplit(place.url)
    index = parts.path.strip("/")
    if parts.scheme not in {"http", "https"} or not parts.netloc or not index or "/" in index:
        raise UserError(f"--sink-url {place.url}: opensearch takes http://host:port/index")
    host = f"{parts.scheme}://{parts.netloc}"
    if ask(host, "GET", f"/{index}/_count?ignore_unavailable=true")["count"]:
        raise UserError(f"--sink-url {place.url}: there is something already; name an empty index")
    yield _sink(host, index, {})


def _sink(host: str, index: str, options: dict[str, str]) -> Sink:
    return Sink(
        FORMAT,
        {"hosts": host, "index": index, **options},
        f"{host}/{index}",
        lambda: counts_by(host, index, "status"),
    )
