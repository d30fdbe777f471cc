"""Flip one byte in a file of a cleanly stopped node, start the node, and check its behaviour.

In: the place of a byte, and the bits to flip. Out: a verdict. It never flips two bytes.
"""

import asyncio
from random import Random

from structlog.testing import capture_logs
from tests.sim.disk import SimDisk, paths
from tests.sim.machine import Machine
from tests.sim.raw import Raw
from tests.sim.world import START_MS, World

from stratalog.client.admin import commit_offsets, fetch_offsets
from stratalog.client.aio import Client
from stratalog.client.calls import NewTopic
from stratalog.errors import Corrupt, ErrorCode, Rejected, Unavailable, UserError
from stratalog.wire.batch import crc_holds, scan
from stratalog.wire.ids import TopicPartition
from stratalog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from stratalog.wire.records import BatchBuilder, read_records

GROUP = "g"
PLAIN, CUT = "plain", "cut"
CUT_BELOW = 3
BATCHES = 11
SETTINGS = {"offsets.topic.num.partitions": "1"}
TOPIC = {"segment.ms": "300", "index.interval.bytes": "0", "file.delete.delay.ms": "1000"}
REFUSED, SERVED, SAID, LEFT_TO_THE_CLIENT = "refused", "served", "said", "left to the client"
INTACT = (".log", ".checkpoint", "partition.metadata")
"""Files that the node cannot rebuild: each one that was not flipped must still exist."""

Records = dict[str, dict[int, bytes]]
Offsets = dict[TopicPartition, int]


def value_of(offset: int) -> bytes:
    return b"%d-%d" % (offset // 2, offset % 2)


def batch(number: int, producer: tuple[int, int] | None = None) -> bytearray:
    builder = BatchBuilder()
    for index in range(2):
        builder.add(None, value_of(2 * number + index), START_MS + 100 * number)
    if producer is None:
        return builder.build()
    return builder.build(
        producer_id=producer[0], producer_epoch=producer[1], base_sequence=2 * number
    )


async def delete_records(world: World, topic: str, offset: int) -> None:
    raw = await Raw.connect(world.network)
    partition = DeleteRecordsPartition(partition_index=0, offset=offset)
    wanted = DeleteRecordsTopic(name=topic, partitions=(partition,))
    answer = await raw.ask(2, DeleteRecordsRequest(topics=(wanted,), timeout_ms=1000))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none
    raw.close()


class Stopped:
    """A node's disk after a clean stop, and the records that it must hold."""

    def __init__(self, disk: SimDisk, records: Records, offsets: dict[TopicPartition, int]) -> None:
        self.disk = disk
        self.records = records
        self.offsets = offsets

    @classmethod
    async def make(cls) -> "Stopped":
        world = World(1)
        machine = Machine(world, SETTINGS)
        client = await machine.restart()
        made = await client.create_topics(
            [NewTopic(name, 1, configs=TOPIC) for name in (PLAIN, CUT)]
        )
        assert not any(one.error for one in made)
        producer = await client.init_producer_id()
        for number in range(BATCHES):
            await client.produce(PLAIN, 0, batch(number, producer))
            await client.produce(CUT, 0, batch(number))
            await client.on_coordinator(
                GROUP, commit_offsets(GROUP, {TopicPartition(PLAIN, 0): number})
            )
        await delete_records(world, CUT, CUT_BELOW)
        records: Records = {}
        for name in (PLAIN, CUT):
            records[name], problem = await read_back(client, name)
            assert problem is None
        assert list(records[PLAIN]) == list(range(2 * BATCHES))
        assert list(records[CUT]) == list(range(CUT_BELOW, 2 * BATCHES))
        offsets = await client.on_coordinator(GROUP, fetch_offsets(GROUP))
        await machine.stop()
        return cls(world.disks["/data"].copy(), records, dict(offsets))

    def files(self) -> list[str]:
        """Return every file that is not empty."""
        return [path for path in paths(self.disk) if self.disk.size(path)]

    async def flip(self, path: str, at: int, mask: int) -> str:
        """Start a node on the same disk with one byte flipped; return the verdict. Raises AssertionError."""
        try:
            return await self._flip(path, at, mask)
        except AssertionError as error:
            raise AssertionError(f"byte {at} of {path} xor {mask}: {error}") from error

    async def _flip(self, path: str, at: int, mask: int) -> str:
        world = World(1)
        disk = world.disks["/data"] = self.disk.copy()
        damaged = bytearray(disk.read(path, 0, 1 << 20))
        damaged[at] ^= mask
        disk.write_file(path, damaged)
        disk.before = lambda operation, name: world.note(operation, "/data", name)
        machine = Machine(world, SETTINGS)
        with capture_logs() as logged:
            try:
                await machine.start()
            except UserError as error:
                assert path in str(error) or path.rpartition("/")[2] in str(error), str(error)
                self._check_files(disk, path)
                return REFUSED
            problem = await self._use(machine, await machine.connect())
            assert not machine.broken_tasks, machine.broken_tasks
            assert not machine.reasons_to_stop
            await machine.stop()
        self._check_files(disk, path)
        if problem is None:
            return SERVED
        if any(
            path in str(event) for event in logged if event["log_level"] in ("error", "warning")
        ):
            return SAID
        assert problem == LEFT_TO_THE_CLIENT, f"{problem}; logged: {logged}"
        return problem

    async def _use(self, machine: Machine, client: Client) -> str | None:
        """Return the first difference that a client sees, or None."""
        await asyncio.sleep(400)  # retention has run on every partition
        problems = []
        for name, expected in self.records.items():
            found, problem = await read_back(client, name)
            # Deleted records may return if the checkpoint that records the deletion is damaged.
            deleted = {at: value_of(at) for at in range(min(expected))}
            wrong = {
                at: value for at, value in found.items() if (deleted | expected).get(at) != value
            }
            found = {at: value for at, value in found.items() if at in expected}
            assert not wrong, f"{name}: {wrong} differ from the written records"
            if problem is not None or found != expected:
                problems.append(
                    problem or f"{name}: {sorted(set(expected) - set(found))} are missing"
                )
        try:
            offsets = await client.on_coordinator(GROUP, fetch_offsets(GROUP))
        except (Rejected, Unavailable) as error:
            assert "LOAD_IN_PROGRESS" not in str(error).upper()
            problems.append(f"offsets: {error}")
        else:
            if dict(offsets) != self.offsets:
                problems.append(f"offsets: {offsets}")
        return next((one for one in problems if one != LEFT_TO_THE_CLIENT), None) or next(
            iter(problems), None
        )

    def _check_files(self, disk: SimDisk, flipped: str) -> None:
        for path in paths(self.disk):
            if path.endswith(INTACT):
                before = self.disk.read(path, 0, 1 << 20)
                try:
                    after = disk.read(path, 0, 1 << 20)
                except FileNotFoundError:
                    raise AssertionError(f"{path} is gone") from None
                if path != flipped:
                    assert after.startswith(before), f"{path} was changed"
                else:
                    assert len(after) >= len(before), f"{path} was cut"


async def read_back(client: Client, topic: str) -> tuple[dict[int, bytes], str | None]:
    """Read a topic from its beginning, as a consumer that checks every CRC and skips unreadable batches."""
    found: dict[int, bytes] = {}
    try:
        partition = TopicPartition(topic, 0)
        info = await client.list_offsets({partition: -2})
        latest = await client.list_offsets({partition: -1})
    except (Rejected, Unavailable) as error:
        return found, str(error)
    offset, end = info[partition].offset, latest[partition].offset
    problem = None
    for _ in range(10 * BATCHES):
        if offset >= end:
            break
        try:
            fetched = await client.fetch(topic, 0, offset, max_bytes=300, max_wait_ms=10)
        except (Rejected, Unavailable) as error:
            problem = str(error)
            offset += 1
            continue
        assert isinstance(fetched.records, memoryview)
        view, before = fetched.records, offset
        try:
            for position, header in scan(view):
                if not crc_holds(view, position, header):
                    problem = problem or LEFT_TO_THE_CLIENT
                else:
                    for record in read_records(view[position : position + header.size]):
                        if record.offset >= before:
                            assert record.value is not None
                            found[record.offset] = record.value
                offset = max(offset, header.next_offset)
        except Corrupt:
            problem = problem or LEFT_TO_THE_CLIENT
        if offset == before:
            problem = problem or f"{topic}: nothing at {offset} of {end}"
            offset += 1
    else:
        problem = problem or f"{topic}: no end"
    return found, problem


def mask_of(chance: Random) -> int:
    return chance.choice((1, 2, 4, 8, 16, 32, 64, 128, 255, chance.randint(1, 255)))
