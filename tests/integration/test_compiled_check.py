"""The crate's check of records is certain of a batch only where the Python check accepts it, with the same timestamp.

Method: sound, unusual, malformed and damaged batches to both; then batches to a real broker, which tells whether the
Python check was called.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.compat.tools import cannot_be_had
from tests.fuzz.poison import ODD, UNSOUND, lying_records, record, sealed, with_fields, with_records
from tests.wire_client import Wire

from stratalog.adapters.compiled_door import largest_timestamp, open_door
from stratalog.broker.partitions import recompression
from stratalog.errors import ErrorCode, Rejected
from stratalog.testing import TemporaryBroker
from stratalog.wire.batch import crc_holds, parse_header
from stratalog.wire.records import Record, build_batch
from stratalog.wire.validation import NO_DEMANDS, Demands, check_batch

TIME = 1_700_000_000_000
LARGE = record(value=bytes(8192))
"""A record that makes its batch large enough for compiled code."""


@pytest.fixture(autouse=True)
def compiled() -> None:
    """Skip, or fail in CI, where the installation has no compiled code."""
    door = open_door()
    if door is None:
        cannot_be_had("the compiled door", "install cargo, then run hatch_build.py")
    door.close()


def both(batch: bytes, demands: Demands = NO_DEMANDS) -> tuple[int | None, int | None]:
    """Return the results of the crate and of Python, None where a check does not accept the batch."""
    view = memoryview(bytearray(batch))
    certain = largest_timestamp()(view, *demands)
    try:
        return certain, check_batch(view, parse_header(batch), demands)
    except Rejected:
        return certain, None


@pytest.mark.parametrize("kind", UNSOUND)
def test_malformed_records_are_never_certain(kind: str) -> None:
    assert both(with_records(0, UNSOUND[kind], 1)) == (None, None)


@pytest.mark.parametrize("kind", ODD)
def test_unusual_records_are_certain_or_left_to_python(kind: str) -> None:
    certain, checked = both(with_records(0, ODD[kind], 1))
    assert checked is not None
    assert certain in (None, checked)


FAR = 1 << 61
"""Both checks add nothing to such a time: the sum may need more than 64 bits."""


@pytest.mark.parametrize("delta", [0, 1, -1, FAR - 1, FAR, -FAR, (1 << 63) - 1, -(1 << 63)])
@pytest.mark.parametrize(
    "base", [0, TIME, FAR - 1, FAR, (1 << 63) - 1, -2, 1 - FAR, -FAR, -(1 << 63)]
)
def test_times_near_the_end_of_64_bits_are_certain_only_as_python_takes_them(
    base: int, delta: int
) -> None:
    batch = with_fields(with_records(0, record(timestamp_delta=delta), 1), {7: base})
    certain, checked = both(batch)
    is_near = abs(base) < FAR and abs(delta) < FAR
    if abs(delta) > FAR:  # of more bytes than a varint may have
        assert (certain, checked) == (None, None)
        return
    assert checked == (max(base + delta, -1) if is_near else -1)
    assert certain == (checked if is_near and base + delta >= -1 else None)
    certain, checked = both(batch, Demands(1 - FAR, FAR - 1))
    is_near &= abs(base + delta) < FAR
    assert checked == (max(base + delta, -1) if is_near else None)
    assert certain in (None, checked)


def batches(chance: Random) -> Iterator[tuple[bytes, Demands]]:
    """Yield sound and damaged batches without compression, and demands around their timestamps."""
    while True:
        made = bytes(
            build_batch(
                [
                    Record(
                        0,
                        chance.choice((-1, TIME, TIME + n)),
                        chance.choice((None, b"k")),
                        b"v" * n,
                    )
                    for n in range(chance.randint(1, 300))
                ]
            )
        )
        if chance.random() < 0.5:
            made = lying_records(chance)
            if parse_header(made).codec:
                continue
        elif chance.random() < 0.2:
            damaged = bytearray(made)
            damaged[chance.randrange(61, len(made))] ^= 1 << chance.randrange(8)
            made = sealed(damaged)
        around = (-(1 << 63), TIME, TIME + 1, TIME + 200, (1 << 63) - 1)
        earliest, latest = sorted(chance.choices(around, k=2))
        yield made, Demands(earliest, latest, chance.random() < 0.3)


def test_what_the_crate_accepts_python_accepts_with_the_same_timestamp() -> None:
    source = batches(Random(1))
    results = [both(*next(source)) for _ in range(3000)]
    assert all(certain in (None, checked) for certain, checked in results)
    accepted = [checked for _, checked in results if checked is not None]
    certain = [one for one, _ in results if one is not None]
    assert 500 < len(accepted) < 2500
    assert len(certain) > 0.95 * len(accepted), "the crate is certain of nearly all sound batches"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the record counts of the batches that Python checked."""
    counted: list[int] = []
    check = recompression.check_batch

    def counting(batch, header, demands, bytes_max):  # type: ignore[no-untyped-def]
        counted.append(header.record_count)
        return check(batch, header, demands, bytes_max)

    monkeypatch.setattr(recompression, "check_batch", counting)
    return counted


def test_a_largest_timestamp_that_is_not_the_records_is_corrected_in_the_stored_batch(
    tmp_path: Path,
) -> None:
    lying = with_records(0, LARGE, 1)
    assert parse_header(lying).max_timestamp != TIME
    with TemporaryBroker(directory=tmp_path) as broker, Wire(broker.address) as wire:
        wire.topic_id("t")
        assert wire.produce("t", lying).error_code == 0
        (stored,) = tmp_path.glob("**/t-0/*.log")
        header = parse_header(stored.read_bytes())
    assert header.max_timestamp == TIME
    assert crc_holds(stored.read_bytes(), 0, header)


def test_a_broker_checks_large_batches_in_compiled_code_and_names_faults_in_python(
    checked: list[int],
) -> None:
    unsound = with_records(0, LARGE + record(offset_delta=7), 2)
    with TemporaryBroker() as broker, Wire(broker.address) as wire:
        wire.topic_id("t")
        large = build_batch([Record(0, TIME, None, bytes(8192)), Record(1, TIME + 5, None, b"")])
        assert wire.produce("t", large).error_code == 0
        assert not checked, "compiled code was certain"
        assert wire.produce("t", unsound).error_code == ErrorCode.invalid_record
        assert checked == [2]
        wire.produce("t", build_batch([Record(0, TIME, None, b"small")]))
        assert checked == [2, 1], "a small batch is checked in Python"
