"""`python -m tests.fuzz.codec --frames 10000000`: damaged requests and responses of every API and version of Kafka's.

In: how many, a seed, the round to go on from. Out: progress, and at the first fault the command that repeats it.

kio makes sound bodies. Reading raises the documented errors alone. What is read is written, and read again as the same
value. The whole node is not here: `python -m tests.fuzz` attacks it with the APIs that it serves.
"""

import argparse
import sys
import time
from random import Random, SystemRandom

from tests.fuzz.frames import damaged
from tests.properties.kio_oracle import instance, kio_bytes, kio_class, plain

from stratalog.errors import Corrupt, Rejected
from stratalog.wire.apis import APIS, is_flexible
from stratalog.wire.budget import DecodeBudget
from stratalog.wire.envelope import decode_request, decode_response, encode_request, encode_response

FRAMES_PER_ROUND = 1000
DAMAGED_OF_ONE = 49
BODY_BYTES_MAX = 5000
BUDGET_BYTES = 1 << 20
PROGRESS_S = 10.0
SERVED = {key: (api.oldest, api.newest) for key, api in APIS.items()}
VERSIONS = [
    (key, version, side)
    for key, api in sorted(APIS.items())
    for version in range(api.oldest, api.newest + 1)
    for side in ("request", "response")
]


def play(seed: int, number: int) -> None:
    """Read the frames of one round. Raises what no reader may raise, and AssertionError."""
    chance = Random(f"{seed} {number}")
    left = FRAMES_PER_ROUND
    while left > 0:
        key, version, side = chance.choice(VERSIONS)
        body = kio_bytes(instance(chance, kio_class(key, version, side)))
        if len(body) > BODY_BYTES_MAX:
            continue
        read = reads_request if side == "request" else reads_response
        assert read(key, version, body), "a sound body is refused"
        for _ in range(DAMAGED_OF_ONE):
            read(key, version, damaged(chance, body))
        left -= 1 + DAMAGED_OF_ONE


def reads_request(key: int, version: int, body: bytes) -> bool:
    """Return whether `body` is a request; if so, it is the same once written and read again."""
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\0\2me"
    frame = head + b"\0" * is_flexible(key, version) + body
    try:
        found = decode_request(memoryview(bytearray(frame)), SERVED, DecodeBudget(BUDGET_BYTES))
    except Rejected:
        return False
    again = b"".join(map(bytes, encode_request(version, 1, "me", found.body)))
    view = memoryview(bytearray(again))[4:]
    body_again = decode_request(view, SERVED, DecodeBudget(BUDGET_BYTES)).body
    assert str(plain(body_again)) == str(plain(found.body)), "nan is no nan, but prints alike"
    return True


def reads_response(key: int, version: int, body: bytes) -> bool:
    """As `reads_request`."""
    # The response to ApiVersions has a header without tags in every version (KIP-511).
    header = b"\0\0\0\1" + b"\0" * (is_flexible(key, version) and APIS[key].name != "api_versions")
    try:
        found = decode_response(key, version, memoryview(bytearray(header + body)))[1]
    except Corrupt:
        return False
    again = b"".join(map(bytes, encode_response(key, version, 1, found)))
    read_again = decode_response(key, version, memoryview(bytearray(again))[4:])[1]
    assert str(plain(read_again)) == str(plain(found))
    return True


def main() -> int:
    """Play rounds; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.codec", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="at least so many")
    parser.add_argument("--seed", type=int, default=None, help="by default a new one")
    parser.add_argument("--from-round", type=int, default=0, help="go on from there")
    chosen = parser.parse_args()
    seed = SystemRandom().randrange(1 << 32) if chosen.seed is None else chosen.seed
    count = -(-chosen.frames // FRAMES_PER_ROUND)
    said = start = time.monotonic()
    for number in range(chosen.from_round, chosen.from_round + count):
        try:
            play(seed, number)
        except BaseException:
            again = f"--seed {seed} --from-round {number} --frames 1"
            print(f"again: python -m tests.fuzz.codec {again}", flush=True)
            raise
        if time.monotonic() - said > PROGRESS_S:
            said = time.monotonic()
            frames = (number + 1 - chosen.from_round) * FRAMES_PER_ROUND
            print(f"{frames} frames, {frames / (said - start):.0f}/s", flush=True)
    print(f"seed {seed}: {count * FRAMES_PER_ROUND} frames, nothing broke")
    return 0


if __name__ == "__main__":
    sys.exit(main())
