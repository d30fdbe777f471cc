"""Send what files gain to a topic, each line once: the rounds of `strata tail`.

In: files, rules, a cluster. Out: one transaction for each round of lines, whose last part is the number of the round.
The state on the disk has the files' positions before and after a round; the cluster's number says which of them hold.

After a failure of the cluster the next session begins as after a crash. Memory is bounded: a round reads at most
`ROUND_BYTES`, and the files wait meanwhile.
"""

import os
from asyncio import CancelledError, get_running_loop, sleep, timeout
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stratalog.adapters.file_facts import raise_descriptor_limit
from stratalog.adapters.system import SystemClock
from stratalog.cli.records.line_records import LineRecords, LineRules
from stratalog.cli.records.tail_state import TailState
from stratalog.cli.records.tailed_files import Chunk, Entry, TailedFiles
from stratalog.cli.shared.terminal import connected, note
from stratalog.client.batching import RECORD_OVERHEAD_BYTES, Batches
from stratalog.client.idempotent import IdempotentPipeline
from stratalog.client.transactional import LOST, Transaction, begin, end
from stratalog.errors import Rejected, Unavailable
from stratalog.wire.ids import TopicPartition
from stratalog.wire.murmur2 import partition_of_key

if TYPE_CHECKING:
    from stratalog.client.aio import Client

__all__ = ["Tail", "Wanted"]

CHUNK_BYTES = 1 << 20
ROUND_BYTES = 16 << 20
POLL_S = 0.25
LOOK_S = 1.0
PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0)
OPEN_MAX = 16_384
TRANSACTION_MS = 60_000
ABORT_S = 5.0
MULTI_LINE_WAIT_S = 2.0
"""A record of several lines has ended once its file has not grown for so long."""
HEADER = "strata-tail"


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command line."""

    bootstrap: str
    patterns: tuple[str, ...]
    topic: str
    identity: str
    rules: LineRules
    from_end: bool
    compression: str
    exactly_once: bool
    until_end: bool
    ends_after_s: float

    @property
    def group(self) -> str:
        """The group and the transactional id, in which the cluster keeps the number of the last round."""
        return f"strata-tail.{self.identity}"


@dataclass(slots=True)
class Tail:
    """`run` until cancelled, or until the files' ends."""

    wanted: Wanted
    state: TailState
    records: int = 0
    """Records that are safe in the cluster."""
    _rounds: int = field(default=0)

    async def run(self) -> None:
        """Send until cancelled. An unreachable cluster is tried again; the files wait.

        Raises UserError, OSError, and Rejected for what another attempt cannot mend.
        """
        attempt = 0
        while True:
            rounds = self._rounds
            try:
                await self._session()
            except Unavailable as error:
                failure = str(error)
            except Rejected as error:
                if error.code not in LOST:
                    raise
                failure = f"the transaction was ended by another: {error.message}"
            else:
                return
            attempt = 0 if self._rounds > rounds else attempt + 1
            pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
            note(f"{failure}; trying again in {pause_s:g} s")
            await sleep(pause_s)

    async def _session(self) -> None:
        """Decide which positions an earlier session left, then send round after round."""
        from stratalog.cli.records.produce import Limits
        from stratalog.cli.shared.reading import existing_topic

        wanted = self.wanted
        async with connected(wanted.bootstrap, patience_s=0) as client:
            partitions = sorted((await existing_topic(client, wanted.topic)).partitions)
            keys = [TopicPartition(wanted.topic, index) for index in partitions]
            limits = await Limits.of(client, wanted.topic)
            if wanted.exactly_once:
                await begin(client, wanted.group, timeout_ms=TRANSACTION_MS, two_phase=False)
                self.state.decide(await committed_number(client, wanted.group, keys[0]))
            files = TailedFiles(
                wanted.patterns,
                dict(self.state.entries),
                wanted.from_end and self.state.is_new,
                line_bytes_max=limits.batch_bytes - 2 * RECORD_OVERHEAD_BYTES - 256,
                ends_after_s=wanted.ends_after_s,
                until_end=wanted.until_end,
                looked_s=self.state.looked_s,
                open_max=_open_max(),
            )
            sender = _Sender(client, wanted, keys, limits.batch_bytes)
            try:
                await self._rounds_of(sender, files)
            finally:
                files.close()

    async def _rounds_of(self, sender: "_Sender", files: TailedFiles) -> None:
        now = get_running_loop().time
        looked_s = float("-inf")
        while True:
            if now() - looked_s >= LOOK_S or self.wanted.until_end:
                looked_s = now()
                files.look(looked_s, SystemClock().now_ms() / 1000)
                for line in files.notes:
                    note(f"warning: {line}")
                files.notes.clear()
            sent = await self._round(sender, files)
            self._rounds += 1
            self.records += sent
            if not sent:
                if self.wanted.until_end:
                    return
                await sleep(POLL_S)

    async def _round(self, sender: "_Sender", files: TailedFiles) -> int:
        """Send what the files have, up to a bound, and make it safe; return the number of records."""
        size = count = 0
        try:
            while size < ROUND_BYTES:
                moved = False
                for chunk in files.chunks(_chunk_bytes(files)):
                    lines = self._records(files, chunk)
                    if not lines.values and not chunk.after.is_done:
                        continue  # a record of several lines, which may go on
                    count += await sender.send(chunk.before, lines)
                    is_whole = lines.size == len(chunk.data)
                    files.keep(chunk if is_whole else files.shortened(chunk, lines.size))
                    size += lines.size
                    moved = True
                    if size >= ROUND_BYTES:
                        break
                if not moved:
                    break
            if count:
                await sender.drain()
                await self._committed(sender, files)
        except CancelledError:
            await sender.abort()
            raise
        return count

    def _records(self, files: TailedFiles, chunk: Chunk) -> LineRecords:
        """Return the chunk's records; without the last one where its next lines may come."""
        is_last = chunk.is_cut or (
            chunk.is_at_end
            and (
                chunk.after.is_done
                or self.wanted.until_end
                or files.quiet_s(chunk.before.key) >= MULTI_LINE_WAIT_S
            )
        )
        bytes_max = min(files.line_bytes_max, _chunk_bytes(files))
        return self.wanted.rules.records(
            chunk.data,
            chunk.before.path,
            chunk.start,
            bytes_max,
            is_last=is_last,
            is_full=chunk.is_full or len(chunk.data) >= bytes_max,
        )

    async def _committed(self, sender: "_Sender", files: TailedFiles) -> None:
        """Commit the round: the state has both positions before the cluster decides which one holds."""
        if sender.transaction is not None:
            await sender.number(self.state.number + 1)
        self.state.begin(dict(files.entries), files.looked_s)
        if sender.transaction is not None:
            await sender.commit()
        self.state.commit(files.looked_s)


class _Sender:
    """Records of one session, in batches; with `exactly_once` in a transaction for each round."""

    def __init__(
        self, client: "Client", wanted: Wanted, keys: list[TopicPartition], batch_bytes: int
    ) -> None:
        self.transaction: Transaction | None = None
        self._client = client
        self._wanted = wanted
        self._keys = keys
        self._batch_bytes = batch_bytes
        self._pipeline: IdempotentPipeline | None = None
        self._batches: Batches | None = None

    async def send(self, entry: Entry, lines: LineRecords) -> int:
        """Add a file's records to batches; return their number. Those without keys stay in one partition."""
        if not lines.values:
            return 0
        batches = self._batches or await self._begun()
        now_ms = SystemClock().now_ms()
        home = partition_of_key(os.fsencode(entry.origin), len(self._keys))
        if not self._wanted.exactly_once:
            file = f"{self._wanted.rules.host}/{entry.device:x}.{entry.inode:x}"
            await self._add_each(batches, lines, home, file, now_ms)
        elif lines.keys is None:
            await batches.extend(self._keys[home], lines.values, now_ms)
        else:
            parts = by_partition(lines.keys, lines.values, home, len(self._keys))
            for partition, (keys, values) in parts.items():
                await batches.extend(self._keys[partition], values, now_ms, keys)
        return len(lines.values)

    async def _add_each(
        self, batches: Batches, lines: LineRecords, home: int, file: str, now_ms: int
    ) -> None:
        """Add records with a header by which readers know repeats."""
        keys = lines.keys or [None] * len(lines.values)
        for key, value, at in zip(keys, lines.values, lines.offsets, strict=True):
            chosen = self._keys[home] if key is None else batches.choose(key, self._keys)
            await batches.add(chosen, key, value, now_ms, ((HEADER, f"{file}/{at}".encode()),))

    async def _begun(self) -> Batches:
        if self._wanted.exactly_once:
            self.transaction = await begin(
                self._client, self._wanted.group, timeout_ms=TRANSACTION_MS, two_phase=False
            )
            self._pipeline = None
        if self._pipeline is None:
            self._pipeline = IdempotentPipeline(self._client, self.transaction)
            await self._pipeline.__aenter__()
        self._batches = Batches(self._pipeline.send, self._wanted.compression, self._batch_bytes)
        return self._batches

    async def drain(self) -> None:
        """Wait until every record is acknowledged."""
        assert self._batches is not None
        assert self._pipeline is not None
        await self._batches.flush()
        await self._pipeline.drain()
        self._batches = None

    async def number(self, number: int) -> None:
        """Write the number of the round into the transaction, as an offset of the group."""
        assert self.transaction is not None
        await self.transaction.commit_offset(self._wanted.group, self._keys[0], number)

    async def commit(self) -> None:
        """Commit the transaction."""
        assert self.transaction is not None
        producer, self.transaction = self.transaction.producer, None
        await end(self._client, self._wanted.group, producer, commit=True)

    async def abort(self) -> None:
        """Abort an open transaction, so that readers need not wait for its time-out."""
        if self.transaction is not None:
            producer, self.transaction = self.transaction.producer, None
            with suppress(Unavailable, Rejected, TimeoutError):
                async with timeout(ABORT_S):
                    await end(self._client, self._wanted.group, producer, commit=False)


def _chunk_bytes(files: TailedFiles) -> int:
    """Return how much of a file is read at once: the longest record fits."""
    return max(CHUNK_BYTES, min(files.line_bytes_max, ROUND_BYTES))


def _open_max() -> int:
    """Return how many files may be open at a time: half of what the process may open."""
    limit = raise_descriptor_limit()
    return OPEN_MAX if limit < 0 else max(16, min(OPEN_MAX, limit // 2))


def by_partition(
    keys: list[bytes | None], values: list[bytes], home: int, partitions: int
) -> dict[int, tuple[list[bytes | None], list[bytes]]]:
    """Return keys and values by partition, in their order; those without a key are at `home`."""
    found: dict[int, tuple[list[bytes | None], list[bytes]]] = {}
    for key, value in zip(keys, values, strict=True):
        partition = home if key is None else partition_of_key(key, partitions)
        some = found.get(partition)
        if some is None:
            some = found[partition] = [], []
        some[0].append(key)
        some[1].append(value)
    return found


async def committed_number(client: "Client", group: str, key: TopicPartition) -> int | None:
    """Return the number of the last round that the cluster has; None for none."""
    from stratalog.client.admin import fetch_offsets
    from stratalog.client.transactional import patiently

    async def ask() -> int | None:
        found = await client.on_coordinator(group, fetch_offsets(group, stable=True))
        return found.get(key)

    return await patiently(ask)
