"""`strata demo`: show the whole path of records in ten seconds.

In: nothing. Out: a broker of its own in a temporary directory, records produced, tiered and read back, with a line for
each step on standard output. It leaves no files, except the broker's log after a failure, and needs neither Spark nor
Java.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.shared.local_broker import Started, broker
from stratalog.cli.shared.terminal import connected, run

if TYPE_CHECKING:
    from stratalog.client.aio import Client

TOPIC = "demo"
RECORDS = 40_000
BATCH_RECORDS = 500
RECORD_MS = 90  # between timestamps: together they span the last hour
SEGMENT_BYTES = 1024 * 1024
PATIENCE_S = 20.0
SERVER_SETTINGS = (
    "remote.log.manager.task.interval.ms=200",
    "log.retention.check.interval.ms=200",
    "log.segment.delete.delay.ms=0",
)
TOPIC_CONFIGS = {
    "segment.bytes": str(SEGMENT_BYTES),
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}


def demo(
    console: Annotated[
        bool,
        typer.Option(
            "--console", help="Then keep the broker, with a web console, until interrupted."
        ),
    ] = False,
) -> None:
    """Start a broker, produce, watch segments move to a bucket, and read everything back.

    Example: strata demo --console
    """
    from asyncio import CancelledError

    try:
        run(print_steps(console))
    except (KeyboardInterrupt, CancelledError):  # SIGINT, SIGTERM
        say("The broker and its data are gone.")


async def print_steps(with_console: bool) -> None:
    """Print the demo's steps as they happen."""
    from asyncio import get_running_loop
    from tempfile import TemporaryDirectory

    loop = get_running_loop()
    with TemporaryDirectory(prefix="strata-demo-") as name:
        place = Path(name)
        bucket = place / "bucket"
        began = loop.time()
        settings = [*SERVER_SETTINGS, f"tier.url={bucket.as_uri()}"]
        if with_console:
            settings.append("monitor.listener=127.0.0.1:0")  # for the page of charts
        async with broker(place, settings) as started:
            address = started.address
            say(
                f"A broker listens on {address} after {loop.time() - began:.1f} s; data and bucket are in {place}"
            )
            async with connected(address) as client:
                await create(client)
                began = loop.time()
                size = await fill(client)
                seconds = loop.time() - began
                say(
                    f"Produced {RECORDS:,} records, {size / 1e6:.0f} MB, in {seconds:.1f} s (acks=all)"
                )
                await watch(place)
                began = loop.time()
                count, wrong = await read_back(client)
                say(
                    f"Read {count:,} records back through the broker in {loop.time() - began:.1f} s"
                )
            if count != RECORDS or wrong:
                sound = f"{count} of {RECORDS} records came back, {wrong} of them wrong"
                typer.echo(sound, err=True)
                raise typer.Exit(1)
            if with_console:
                await stay(started, bucket.as_uri())
        say("The broker is gone.")
        say(f"What is in the bucket is readable without it: {in_bucket(bucket)}")
    say("All is as it was written. Next: ./run, or `strata server --help`.")


async def stay(started: Started, tier_url: str) -> None:
    """Serve a web console until this task is cancelled."""
    import asyncio
    import signal

    from stratalog.cli.shared.console_beside import console_beside

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with console_beside(started.address, tier_url, started.monitor) as url:
        if url is not None:
            say("Look at it; Ctrl-C ends the demo.")
            await asyncio.Event().wait()


def say(text: str) -> None:
    """Print one step at once."""
    print(text, flush=True)


async def create(client: "Client") -> None:
    """Create the demo's topic: small segments that leave the local disk as soon as they are in the bucket."""
    from stratalog.client.calls import NewTopic
    from stratalog.errors import ErrorCode, Rejected

    (result,) = await client.create_topics([NewTopic(TOPIC, 1, 1, TOPIC_CONFIGS)])
    if result.error != ErrorCode.none:
        raise Rejected(result.error, result.message or "")
    settings = " ".join(f"{name}={value}" for name, value in TOPIC_CONFIGS.items())
    say(f"Created topic {TOPIC}: {settings}")


def value_of(number: int) -> bytes:
    """Return the value of a record, different for each record."""
    return f"record {number:08d} ".encode() + b"." * 180


async def fill(client: "Client") -> int:
    """Produce the records, with timestamps over the last hour; return their bytes as sent."""
    from stratalog.adapters.system import SystemClock
    from stratalog.wire.records import BatchBuilder

    first_ms = SystemClock().now_ms() - RECORDS * RECORD_MS
    size = 0
    async with client.pipeline() as pipeline:
        for first in range(0, RECORDS, BATCH_RECORDS):
            builder = BatchBuilder()
            for number in range(first, first + BATCH_RECORDS):
                builder.add(
                    b"key-%d" % (number % 100), value_of(number), first_ms + number * RECORD_MS
                )
            batch = builder.build()
            size += len(batch)
            _ = await pipeline.send(TOPIC, 0, batch)
    return size


async def watch(place: Path) -> None:
    """Show segments as they arrive in the bucket and leave the local disk, until only the active one is left."""
    from asyncio import get_running_loop, sleep

    loop = get_running_loop()
    began = loop.time()
    shown = (0, 0)
    while loop.time() < began + PATIENCE_S:
        archived = len(list((place / "bucket").rglob("*.seg")))
        local = len(list((place / "data" / f"{TOPIC}-0").glob("*.log")))
        if (archived, local) != shown:
            shown = (archived, local)
            say(
                f"  {loop.time() - began:4.1f} s  {archived} segment(s) in the bucket, {local} on local disk"
            )
        if archived and local == 1:
            return
        await sleep(0.1)


async def read_back(client: "Client") -> tuple[int, int]:
    """Read the topic from its first offset; return the number of records, and how many of them are wrong."""
    from stratalog.cli.shared.reading import records_from

    count = wrong = offset = 0
    while offset < RECORDS:
        fetched = await client.fetch(TOPIC, 0, offset, max_wait_ms=1000, max_bytes=4 << 20)
        before = offset
        for after, record in records_from(fetched.records, offset):
            offset = after
            if record is not None:
                wrong += record.value != value_of(count) or record.offset != count
                count += 1
        if offset == before and fetched.high_watermark <= offset:
            break
    return count, wrong


def in_bucket(bucket: Path) -> str:
    """Return the contents of the bucket, read without a broker."""
    from stratalog.adapters.object_store import open_store
    from stratalog.tier.reading.reader import open_bucket

    reader = open_bucket(open_store(bucket.as_uri()))
    topic = reader.topic(TOPIC)
    assert topic is not None, "the bucket has no topic"
    manifests = reader.manifests(topic).values()
    live = [segment.entry for manifest in manifests for segment in reader.live(manifest)]
    records = sum(entry.records for entry in live)
    return f"{records:,} records in {len(live)} segments, offsets {live[0].base_offset}-{live[-1].last_offset}"
