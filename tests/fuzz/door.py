"""Damaged Produce frames to the compiled door's parser; each frame that it accepts must be one for the handlers, too.

usage: python -m tests.fuzz.door [--frames 1000000] [--seed 1]

In: a seed. Out: one line, or the first frame about which the two disagree. The crate may leave any frame to the
handlers. It must accept none that they would refuse.
"""

from argparse import ArgumentParser
from random import Random
from uuid import UUID

from tests.produce import produce_body
from tests.sim.door import parse

from stratalog.adapters.compiled_door import open_door
from stratalog.wire.batch import HEADER_SIZE, crc_holds, parse_header, set_max_timestamp
from stratalog.wire.envelope import encode_request
from stratalog.wire.records import Record, build_batch

LENGTH = 4


def made(chance: Random) -> bytearray:
    """Return a good frame."""
    records = [
        Record(
            0,
            1000 + at,
            chance.choice((None, b"k")),
            bytes(chance.randint(0, 40)),
            (("h", chance.choice((None, b"v"))),) if chance.random() < 0.3 else (),
        )
        for at in range(chance.randint(1, 4))
    ]
    batch = build_batch(records)
    if chance.random() < 0.5:
        damage(chance, batch, HEADER_SIZE)
        header = parse_header(batch)
        set_max_timestamp(batch, 0, header, header.max_timestamp)  # a CRC that holds
        assert crc_holds(batch, 0, header._replace(crc=parse_header(batch).crc))
    version = chance.randint(3, 13)
    topic = UUID(int=7) if version == 13 else "topic"
    pieces = encode_request(version, 1, "me", produce_body(topic, batch, acks=1))
    return bytearray(b"".join(bytes(one) for one in pieces)[LENGTH:])


def damage(chance: Random, data: bytearray, start: int = 0) -> None:
    """Change some bytes from `start` on."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(start, len(data))
        data[at] = chance.choice((chance.randrange(256), 0, 1, 127, 128, 255, data[at] ^ 1))


def attack(frames: int, seed: int) -> tuple[int, int]:
    """Return how many frames the crate accepted, and how many the handlers' codecs would."""
    chance = Random(seed)
    door = open_door()
    assert door is not None, "install cargo, then run hatch_build.py"
    accepted = sound = 0
    for _ in range(frames):
        frame = made(chance)
        if chance.random() < 0.3:
            damage(chance, frame)
        is_row = door.is_row(memoryview(frame))
        row = parse(memoryview(frame))
        accepted += is_row
        sound += row is not None
        assert row is not None or not is_row, f"seed {seed}: accepted {frame.hex()}"
    door.close()
    return accepted, sound


def main() -> None:
    parser = ArgumentParser(prog="python -m tests.fuzz.door")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    accepted, sound = attack(chosen.frames, chosen.seed)
    print(f"{chosen.frames} frames, {accepted} rows, {sound} sound, seed {chosen.seed}")


if __name__ == "__main__":
    main()
