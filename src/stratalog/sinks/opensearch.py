"""Write rows into an index of OpenSearch: prepare the index once, then write each task's rows.

In: options, an Arrow schema, record batches. Out: documents that OpenSearch has acknowledged, and their number. It
never deletes anything and never changes a mapping.

No document is lost silently: the write returns once every document is in the index, or in the index of dead letters
where one is named; else it fails. Documents that failed for now (429 and server errors, of one document or of a whole
request) are sent again, alone, after a growing backoff. Meanwhile the task reads no further rows: that is the
back-pressure.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from stratalog.adapters.http_client import Answer, Credentials, HttpClient
from stratalog.adapters.system import SystemEntropy
from stratalog.adapters.threads import ThreadWorker
from stratalog.errors import BadOption, Unavailable, UserError
from stratalog.sinks.bulk import (
    BULK_QUERY,
    TOO_LARGE,
    Refused,
    answered,
    batched,
    bulk_body,
    error_text,
    is_passing,
    retry_delay_s,
)
from stratalog.sinks.documents import LETTER_MAPPINGS, Document, documents_of, mappings_of
from stratalog.sinks.opensearch_options import SHARDS, OpenSearchOptions

__all__ = ["Counts", "connect", "prepare", "refresh", "write_documents"]

USER: Final = "OPENSEARCH_USERNAME"
PASSWORD: Final = "OPENSEARCH_PASSWORD"  # noqa: S105 - a variable's name
CA_FILE: Final = "OPENSEARCH_CA_FILE"

_JITTER: Final = (0.5, 1.0)
_NDJSON: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Counts:
    """Documents that the index accepted, and letters in the index of dead letters."""

    documents: int
    letters: int


def connect(hosts: Sequence[str], timeout_s: float, connections: int = 1) -> HttpClient:
    """Return a client for OpenSearch; login and trusted authority come from the environment. Raises UserError."""
    environment = os.environ
    user, password = environment.get(USER), environment.get(PASSWORD)
    if (user is None) != (password is None):
        given, missing = (USER, PASSWORD) if password is None else (PASSWORD, USER)
        raise UserError(f"{given} is set in the environment, {missing} is not")
    credentials = None
    if user is not None and password is not None:
        credentials = Credentials(user, password)
    ca_file = environment.get(CA_FILE)
    if ca_file is not None and not os.access(ca_file, os.R_OK):
        raise UserError(f"{CA_FILE}={ca_file} cannot be read")
    return HttpClient(
        hosts,
        credentials=credentials,
        ca_file=ca_file,
        timeout_s=timeout_s,
        connections=connections,
    )


def prepare(options: OpenSearchOptions, schema: pa.Schema) -> None:
    """Create the index and the index of dead letters where they are missing, and apply the requested settings.

    Raises BadOption for columns that cannot be indexed and for a changed number of shards, UserError where OpenSearch
    refuses, Unavailable where it cannot be reached.
    """
    mappings = mappings_of(schema)
    with closing(connect(options.hosts, options.timeout_s)) as client:
        _make_ready(client, options.index, options.settings, mappings)
        if options.dead_letter_index is not None:
            _make_ready(client, options.dead_letter_index, {}, LETTER_MAPPINGS)


def _make_ready(
    client: HttpClient, index: str, settings: Mapping[str, str], mappings: Mapping[str, Any]
) -> None:
    found = client.request("GET", f"/{index}/_settings?flat_settings=true")
    if found.status == 404:
        body = msgspec.json.encode({"settings": settings, "mappings": mappings})
        made = client.request("PUT", f"/{index}", body)
        if made.status == 200:
            return
        if b"resource_already_exists_exception" not in made.body:
            _check(index, made)
        found = client.request("GET", f"/{index}/_settings?flat_settings=true")
    _check(index, found)
    others = {name: value for name, value in settings.items() if name != SHARDS}
    for name, one in msgspec.json.decode(found.body).items():
        shards = one["settings"][SHARDS]
        if settings.get(SHARDS, shards) != shards:
            raise BadOption(
                f"option '{SHARDS}' is {settings[SHARDS]}, but index {name} has {shards}, which cannot be changed: "
                "leave the option out, or name a new index"
            )
    if others:
        _check(index, client.request("PUT", f"/{index}/_settings", msgspec.json.encode(others)))


def refresh(options: OpenSearchOptions) -> None:
    """Make everything written so far visible to searches. Raises UserError, Unavailable."""
    with closing(connect(options.hosts, options.timeout_s)) as client:
        for index in filter(None, (options.index, options.dead_letter_index)):
            _check(index, client.request("POST", f"/{index}/_refresh"))


def _check(index: str, answer: Answer) -> None:
    if is_passing(answer.status):
        raise Unavailable(f"index {index}: {answer.status} {error_text(answer.body)}")
    if answer.status != 200:
        raise UserError(f"index {index}: {answer.status} {error_text(answer.body)}")


def write_documents(found: Iterable[pa.RecordBatch], options: OpenSearchOptions) -> Counts:
    """Write every row and wait for the acknowledgements.

    Raises UserError for a refused document without an index of dead letters, and for other permanent errors;
    Unavailable where OpenSearch accepts nothing for the time that the options allow.
    """
    with closing(connect(options.hosts, options.timeout_s, options.worker)) as client:
        try:
            return asyncio.run(_write(found, options, client))
        except BaseExceptionGroup as group:
            failures = group.subgroup((UserError, Unavailable))
            if failures is None:
                raise
            raise _first(failures) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _write(
    found: Iterable[pa.RecordBatch], options: OpenSearchOptions, client: HttpClient
) -> Counts:
    delivery = _Delivery(options, client, ThreadWorker("opensearch", options.worker))
    free = asyncio.Semaphore(options.worker)

    async def deliver(batch: Sequence[Document]) -> None:
        try:
            await delivery.deliver(batch)
        finally:
            free.release()

    try:
        async with asyncio.TaskGroup() as group:
            for batch in batched(_documents(found), options.bulk_max_size):
                await free.acquire()
                group.create_task(deliver(batch))
    finally:
        await delivery.worker.close()
    return Counts(delivery.documents, delivery.letters)


def _documents(found: Iterable[pa.RecordBatch]) -> Iterator[Document]:
    for batch in found:
        yield from documents_of(batch)


class _Delivery:
    """The delivery of batches, with counts of the earlier ones."""

    def __init__(
        self, options: OpenSearchOptions, client: HttpClient, worker: ThreadWorker
    ) -> None:
        self._options = options
        self._client = client
        self._entropy = SystemEntropy()
        self.worker = worker
        self.documents = 0
        self.letters = 0

    async def deliver(self, batch: Sequence[Document]) -> None:
        """Send documents until each is in the index, or a letter about it in the index of dead letters."""
        index, letters = self._options.index, self._options.dead_letter_index
        refused = await self._send(index, batch)
        self.documents += len(batch) - len(refused)
        if not refused:
            return
        if letters is None:
            raise UserError(f"{_complaint(index, refused)}; name a dead_letter_index to go on")
        posted = [one.document.letter(index, one.kind, one.reason) for one in refused]
        if lost := await self._send(letters, posted):
            raise UserError(_complaint(letters, lost))
        self.letters += len(posted)

    async def _send(self, index: str, documents: Sequence[Document]) -> Sequence[Refused]:
        """Send until each document is accepted or refused; return the refused ones."""
        refused: list[Refused] = []
        failures = 0
        while documents:
            answer = await self._post(index, documents)
            if isinstance(answer, Answer) and answer.status == TOO_LARGE:
                return [*refused, *await self._send_less(index, documents, answer)]
            again, why = documents, str(answer)
            if isinstance(answer, Answer):
                result = answered(index, documents, answer.status, answer.body)
                refused += result.refused
                again, why = result.again, result.why
            failures = 0 if len(again) < len(documents) else failures
            if again:
                await self._wait(index, len(again), why, failures)
                failures += 1
            documents = again
        return refused

    async def _post(self, index: str, documents: Sequence[Document]) -> Answer | Unavailable:
        body = bulk_body(documents)
        path = f"/{index}/_bulk?{BULK_QUERY}"
        try:
            return await self.worker.submit(
                lambda: self._client.request("POST", path, body, _NDJSON)
            )
        except Unavailable as error:
            return error  # a retry is safe: the same documents have the same ids

    async def _send_less(
        self, index: str, documents: Sequence[Document], answer: Answer
    ) -> Sequence[Refused]:
        """Send half as many at once; refuse a single document that is too large."""
        if len(documents) == 1:
            text = (
                error_text(answer.body) or "more than a request may have (http.max_content_length)"
            )
            return [Refused(documents[0], "too_large", text)]
        middle = len(documents) // 2
        first = await self._send(index, documents[:middle])
        return [*first, *await self._send(index, documents[middle:])]

    async def _wait(self, index: str, count: int, why: str, failures: int) -> None:
        options = self._options
        if failures >= options.retries_max:
            raise Unavailable(
                f"index {index}: {count} documents were not taken after {failures} retries: {why}"
            )
        chance = self._entropy.uniform(*_JITTER)
        await asyncio.sleep(
            retry_delay_s(failures, options.backoff_init_s, options.backoff_max_s, chance)
        )


def _complaint(index: str, refused: Sequence[Refused]) -> str:
    first, more = refused[0], len(refused) - 1
    others = f" (and {more} more)" if more else ""
    return f"index {index} refuses {first.document.record}{others}: {first.kind}: {first.reason}"
