"""Read records for `strata consume`: from chosen partitions, or as a member of a group.

In: a request, and a printer. Out: printed records, and commits of their offsets. It never commits a record that is
still in this process.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stratalog.cli.shared.terminal import connected, note

if TYPE_CHECKING:
    from stratalog.cli.shared.forms import Printer
    from stratalog.client.admin import Offsets
    from stratalog.client.aio import Client
    from stratalog.client.membership import Member
    from stratalog.client.reader import Fetched, Reader
    from stratalog.wire.ids import TopicPartition

ROUND_S = 0.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request of one read: topics, partitions, start, group and end."""

    topics: tuple[str, ...]
    start: str
    partitions: list[int] | None
    group: str | None
    until_end: bool
    max_messages: int | None
    timeout_s: float | None = None
    isolation: int = 0
    """As in a Fetch request: 1 for committed records only."""
    last: int | None = None
    """Begin so many records before the end of each partition, instead of at `start`."""
    is_pattern: bool = False
    """Whether `topics` are regular expressions, for whole names."""

    @property
    def other_offsets(self) -> str:
        """Return a hint how to begin at other offsets."""
        if self.group is None:
            return "give another --from, such as beginning"
        words = f"{self.group} --topic {self.topics[0]}"
        return f"move the group: strata group reset-offsets {words} --to beginning"


async def follow(bootstrap: str, wanted: Wanted, printer: "Printer") -> None:
    """Print until the request is met. Raises UserError, Rejected, Unavailable, Corrupt; CancelledError on SIGTERM."""
    import asyncio
    import signal

    from stratalog.client.membership import REBALANCE_MS, Member

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with connected(bootstrap) as client:
        if wanted.is_pattern:
            wanted = replace(wanted, topics=await matching(client, wanted.topics))
        if wanted.group is None or wanted.partitions is not None:
            await follow_alone(client, wanted, printer)
            return
        await existing(client, wanted)
        # A coordinator answers once the others have joined: its answers may take a rebalance.
        async with connected(bootstrap, timeout_s=REBALANCE_MS / 1000 + 30) as own:
            member = Member(own, wanted.group, wanted.topics)
            await follow_as_member(client, member, wanted, printer)


async def matching(client: "Client", patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the topics whose whole names match, without Kafka's own. Raises UserError where none does."""
    import re

    from stratalog.errors import UserError

    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise UserError(f"--regex: {error.pattern!r} is not accepted: {error}") from None
    topics = (await client.metadata()).topics.values()
    names = [one.name for one in topics if not one.is_internal]
    found = [name for name in names if any(pattern.fullmatch(name) for pattern in compiled)]
    if not found:
        shown = ", ".join(patterns)
        raise UserError(
            f"--regex: no topic matches {shown}, from the first to the last character of its name; "
            "list topics: strata topic list"
        )
    note(f"topics: {', '.join(sorted(found))}")
    return tuple(sorted(found))


async def existing(client: "Client", wanted: Wanted) -> "list[TopicPartition]":
    """Return the partitions to read. Raises UserError for a topic or partition that is not there."""
    from stratalog.cli.shared.reading import chosen_partitions
    from stratalog.wire.ids import TopicPartition

    return [
        TopicPartition(topic, index)
        for topic in wanted.topics
        for index in await chosen_partitions(client, topic, wanted.partitions)
    ]


async def follow_alone(client: "Client", wanted: Wanted, printer: "Printer") -> None:
    """Read the requested partitions. With a group, commit to it without joining."""
    from stratalog.client.admin import commit_offsets

    async def commit(offsets: "Offsets") -> bool:
        if wanted.group is not None:
            await client.on_coordinator(wanted.group, commit_offsets(wanted.group, offsets))
        return True

    async def always() -> bool:
        return True

    chosen = await existing(client, wanted)
    await (await Following.of(client, wanted, chosen, printer, commit)).run(always)


async def follow_as_member(
    client: "Client", member: "Member", wanted: Wanted, printer: "Printer"
) -> None:
    """Read the assigned partitions through every rebalance; leave the group at the end, also after a failure."""
    try:
        while True:
            assigned = sorted(key for key in await member.join() if key.topic in wanted.topics)
            alone = len(wanted.topics) == 1
            shown = ", ".join(str(key.partition if alone else key) for key in assigned) or "none"
            note(f"group {wanted.group}, generation {member.generation}: partitions {shown}")
            following = await Following.of(client, wanted, assigned, printer, member.commit)
            if await following.run(member.beat):
                return
    finally:
        await member.leave()


class Following:
    """Read, print and commit the partitions that this member has at present."""

    def __init__(
        self,
        client: "Client",
        wanted: Wanted,
        positions: "dict[TopicPartition, int]",
        ends: "dict[TopicPartition, int]",
        printer: "Printer",
        commit: "Callable[[Offsets], Awaitable[bool]]",
    ) -> None:
        """Begin at `positions`; end at `ends`, or never where they name no end. `of` looks both up."""
        self._client = client
        self._wanted = wanted
        self._positions = positions  # the offset after the last printed record
        self._kept = dict(positions)
        self._ends = ends
        self._printer = printer
        self._commit = commit

    @classmethod
    async def of(
        cls,
        client: "Client",
        wanted: Wanted,
        partitions: "list[TopicPartition]",
        printer: "Printer",
        commit: "Callable[[Offsets], Awaitable[bool]]",
    ) -> "Following":
        """Look up the first offsets, and the last ones if the request has an end."""
        from stratalog.cli.shared.reading import offsets_at

        isolation = wanted.isolation
        positions = await offsets_at(client, partitions, wanted.start, isolation)
        if wanted.last is not None:
            starts = await offsets_at(client, partitions, "beginning")
            tails = await offsets_at(client, partitions, "end", isolation)
            positions = {key: max(starts[key], tail - wanted.last) for key, tail in tails.items()}
        if wanted.group is not None:
            positions |= await committed_offsets(client, wanted.group, partitions)
        ends: dict[TopicPartition, int] = {}
        if wanted.until_end:
            ends = await offsets_at(client, partitions, "end", isolation)
        return cls(client, wanted, positions, ends, printer, commit)

    async def run(self, still_ours: Callable[[], Awaitable[bool]]) -> bool:
        """Print until the request is met (True), or until the member loses the partitions (False)."""
        from asyncio import CancelledError

        from stratalog.cli.shared.reading import ranges_explained
        from stratalog.client.reader import FetchSettings, Reader

        ends = self._ends
        unread = {
            key: offset
            for key, offset in self._positions.items()
            if key not in ends or offset < ends[key]
        }
        try:
            with Reader(
                self._client, unread, FetchSettings(isolation=self._wanted.isolation)
            ) as reader:
                async with ranges_explained(self._client, reader, self._wanted.other_offsets):
                    return await self._read(reader, still_ours)
        except CancelledError:
            await self._keep()
            raise

    async def _read(self, reader: "Reader", still_ours: Callable[[], Awaitable[bool]]) -> bool:
        from asyncio import get_running_loop, sleep

        now = get_running_loop().time
        wanted = self._wanted
        patience_s = float("inf") if wanted.timeout_s is None else wanted.timeout_s
        last_record_s = now()
        while reader.positions or not wanted.until_end:
            if not await still_ours():
                await self._keep()
                return False
            if not reader.positions:  # the group has more members than the topic partitions
                await sleep(min(ROUND_S, patience_s))
                found = []
            else:
                found = await reader.poll(min(ROUND_S, patience_s))
            for fetched in found:
                self._print(fetched, reader)
            if found:
                last_record_s = now()
                kept = await self._keep()
                if self._printer.count == wanted.max_messages:
                    return True
                if not kept:
                    return False
            elif now() - last_record_s >= patience_s:
                return True
        return True

    def _print(self, fetched: "Fetched", reader: "Reader") -> None:
        from stratalog.cli.shared.reading import records_from
        from stratalog.wire.ids import TopicPartition

        key = TopicPartition(fetched.topic, fetched.partition)
        end = self._ends.get(key)
        for offset, record in records_from(fetched.records, fetched.offset, fetched.aborted):
            if self._printer.count == self._wanted.max_messages:
                return
            if end is not None and record is not None and record.offset >= end:
                self._positions[key] = end  # the next reader prints later records
                break
            self._positions[key] = offset
            if record is not None:
                self._printer.print(key, record)
        if end is not None and self._positions[key] >= end:
            reader.drop(key)

    async def _keep(self) -> bool:
        """Flush the printed records, then commit them; return False where the member has lost the partitions."""
        sys.stdout.flush()
        moved = {
            key: offset for key, offset in self._positions.items() if offset != self._kept[key]
        }
        if moved and not await self._commit(moved):
            return False
        self._kept |= moved
        return True


async def committed_offsets(
    client: "Client", group: str, partitions: "Iterable[TopicPartition]"
) -> "dict[TopicPartition, int]":
    """Return a group's committed offset for each partition that has one."""
    from stratalog.client.admin import fetch_offsets

    found = await client.on_coordinator(group, fetch_offsets(group))
    return {key: found[key] for key in partitions if key in found}
