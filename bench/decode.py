"""Measure how fast one core turns record batches into Arrow, beside the codec alone with the same batches.

In: nothing. Out: a table for RESULTS.md, in GB of records before compression for each second of CPU time. The codec
alone restores the same batches into one buffer. The two take turns.

    python -m bench.decode [--rounds 5] [--mb 64] [--batch-bytes 16384] [--codecs none,zstd]

The log: records of about 200 B with a key, text and a header; five producers, most of their transactions committed,
some aborted, each ended by its marker; one offset in a hundred batches is missing, as after compaction. The decoder
returns every column and the headers, and leaves out aborted records.
"""

import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from bench.broker import spread
from stratalog.adapters.memory import keep_freed_memory
from stratalog.kernels.columns import COLUMNS, HEADERS
from stratalog.kernels.decode import Decoder, warm
from stratalog.kernels.rows import Layout
from stratalog.wire.compression import CODEC_NAMES, decompress_into
from stratalog.wire.records import BatchBuilder, Record, build_batch
from stratalog.wire.transactions import AbortedTransaction, reaching

RECORD_BYTES = 200
PRODUCERS = 5
BATCHES_A_TRANSACTION = 10
ABORTED_EVERY = 10
GAP_EVERY = 100
CHUNK_BYTES = 4 << 20
TIMESTAMP_MS = 1_700_000_000_000


class Made(NamedTuple):
    """A log, in chunks of whole batches; `visible` are the payloads that a committed reader restores."""

    chunks: list[bytes]
    aborted: list[AbortedTransaction]
    codec: int
    visible: list[memoryview]
    records: int
    record_bytes: int
    end: int


class Batch(NamedTuple):
    """One producer's batch; `marker` ends its transaction: None, 0 (abort) or 1 (commit)."""

    producer: int
    aborted: bool
    marker: int | None


def story(batches: int) -> list[Batch]:
    """Return the order of the log's batches: transactions of five producers, side by side."""
    found, written, number = [], [0] * PRODUCERS, list(range(PRODUCERS))
    for at in range(batches):
        producer = at % PRODUCERS
        aborted = number[producer] % ABORTED_EVERY == 0
        found.append(Batch(producer, aborted, None))
        written[producer] += 1
        if written[producer] % BATCHES_A_TRANSACTION == 0:
            found.append(Batch(producer, aborted, 0 if aborted else 1))
            number[producer] += PRODUCERS
    return found


def made(codec: str, size: int, batch_bytes: int) -> Made:
    """Return a log of about `size` bytes of records."""
    chance = Random(1)
    words = [
        "".join(chance.choices("etaoinshrdlucmfw", k=chance.randrange(3, 9))) for _ in range(600)
    ]
    values = [" ".join(chance.choices(words, k=40))[:160].encode() for _ in range(4000)]
    pieces: list[bytearray] = []
    aborted: list[AbortedTransaction] = []
    open_since: dict[int, int] = {}
    visible, records, record_bytes, offset = [], 0, 0, 0
    for number, one in enumerate(story(size // batch_bytes)):
        offset += number % GAP_EVERY == 0
        if one.marker is not None:
            marker = [
                Record(0, TIMESTAMP_MS, b"\0\0" + one.marker.to_bytes(2, "big"), bytes(6), ())
            ]
            pieces.append(
                build_batch(
                    marker,
                    base_offset=offset,
                    producer_id=one.producer,
                    transactional=True,
                    control=True,
                )
            )
            if one.aborted:
                found = AbortedTransaction(one.producer, open_since[one.producer], offset)
                aborted.append(found)
            del open_since[one.producer]
            offset += 1
            continue
        open_since.setdefault(one.producer, offset)
        builder = BatchBuilder(codec)
        while builder.size + RECORD_BYTES < batch_bytes:
            key = b"key-%010d" % (offset + builder.count)
            value = values[chance.randrange(len(values))]
            builder.add(key, value, TIMESTAMP_MS + offset, (("trace", b"%d" % offset),))
        pieces.append(builder.build(offset, 0, producer_id=one.producer, transactional=True))
        if not one.aborted:
            visible.append(memoryview(pieces[-1])[61:])
            records += builder.count
            record_bytes += builder.size
        offset += builder.count
    return Made(
        chunked(pieces), aborted, CODEC_NAMES.index(codec), visible, records, record_bytes, offset
    )


def chunked(pieces: Sequence[bytearray]) -> list[bytes]:
    """Return whole batches in buffers, as a task receives them."""
    chunks, chunk = [], bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= CHUNK_BYTES:
            chunks.append(bytes(chunk))
            chunk = bytearray()
    return [*chunks, bytes(chunk)]


def decode(log: Made) -> None:
    """Decode the log as a task does."""
    decoder = Decoder(Layout("bench", 0, (*COLUMNS, HEADERS)), 0, log.end)
    rows = 0
    for chunk in log.chunks:
        aborted = reaching(log.aborted, decoder.next_offset)
        for batch in decoder.decode(chunk, "bench", gaps=True, checked=True, aborted=aborted):
            rows += batch.num_rows
    rows += sum(batch.num_rows for batch in decoder.flush())
    assert rows == log.records, (rows, log.records)


def restore(log: Made, target: memoryview) -> None:
    for payload in log.visible:
        decompress_into(log.codec, payload, target)


def rate(work: Callable[[], None], size: int) -> float:
    """Return GB of records for each second of CPU time."""
    began = time.process_time()
    work()
    return size / 1e9 / (time.process_time() - began)


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.decode")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mb", type=int, default=64, help="MiB of records before compression")
    parser.add_argument("--batch-bytes", type=int, default=16384, help="Kafka's batch.size")
    parser.add_argument("--codecs", default=",".join(CODEC_NAMES))
    chosen = parser.parse_args()
    keep_freed_memory()  # as a task does
    warm()
    print("| decode, one core | GB/s of CPU | codec alone | ratio |\n|---|---|---|---|", flush=True)
    for codec in chosen.codecs.split(","):
        log = made(codec, chosen.mb << 20, chosen.batch_bytes)
        target = np.empty(2 * chosen.batch_bytes + (1 << 16), dtype=np.uint8).data
        mine, alone = [], []
        for number in range(chosen.rounds + 1):
            found = rate(lambda log=log: decode(log), log.record_bytes)
            beside = rate(lambda log=log, at=target: restore(log, at), log.record_bytes)
            if number:  # the first warms
                mine.append(found)
                alone.append(beside)
        ratios = [one / other for one, other in zip(mine, alone, strict=True)]
        codec_alone = (spread(alone, 2), spread(ratios, 2)) if log.codec else ("", "")
        print(f"| {codec} | {spread(mine, 2)} | {codec_alone[0]} | {codec_alone[1]} |", flush=True)


if __name__ == "__main__":
    main()
