"""Goal: a key filter never denies a key that its segment holds, and seldom affirms another one.

Method: batches of every codec with keys of many shapes; the compiled module beside its own text.
"""

import importlib.util
import itertools
import struct
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from stratalog.errors import Corrupt
from stratalog.tier.formats.key_filter import (
    KEYS_PER_PAGE,
    PAGE_BYTES,
    KeyFilterBuilder,
    may_hold,
    page_of,
)
from stratalog.wire import keys as imported
from stratalog.wire.batch import HEADER_SIZE
from stratalog.wire.records import Record, build_batch

SOURCE = Path(imported.__file__).with_name("keys.py")
SHAPES = {
    "decimal": lambda n: b"user-%012d" % n,
    "decimal of 12": lambda n: b"%012d" % n,
    "decimal of any length": lambda n: b"%d" % n,
    "decimal with a suffix": lambda n: b"order:%d:eu-central" % n,
    "int": lambda n: n.to_bytes(4, "big"),
    "little-endian int": lambda n: n.to_bytes(4, "little"),
    "long int": lambda n: n.to_bytes(8, "big"),
    "little-endian long int": lambda n: n.to_bytes(8, "little"),
    "multiples of 4096": lambda n: (n << 12).to_bytes(8, "big"),
    "pair of long ints": lambda n: (n >> 8).to_bytes(8, "big") + (n & 255).to_bytes(8, "big"),
    "double": struct.Struct(">d").pack,
    "short": lambda n: n.to_bytes(3, "big"),
    "long": lambda n: b"%064x" % (n * 2**32),
    "long prefix": lambda n: b"tenant/0000000000/customers/" * 8 + b"%08d" % n,
    "UUID": lambda n: uuid_of(n).bytes,
    "text of a UUID": lambda n: str(uuid_of(n)).encode(),
    "two bits of 64 bytes": lambda n: (1 << n // 256 | 1 << 511 - n % 256).to_bytes(64, "big"),
    "zeros": bytes,
}
DISTINCT = {"two bits of 64 bytes": 40_000, "zeros": 3000}
"""Numbers of different keys, where a shape has few."""
BUCKET_MOST = 30
"""A page has 6.6 keys a bucket on average; one in 10¹¹ buckets of random keys has more than 30."""


def uuid_of(number: int) -> UUID:
    return UUID(bytes=sha256(b"%d" % number).digest()[:16], version=4)


def interpreted() -> ModuleType:
    spec = importlib.util.spec_from_file_location("keys_as_text", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAIN = interpreted()
some_keys = st.one_of(st.none(), st.binary(max_size=4), st.binary(max_size=200))


def batch_of(keys, codec="none", control=False):
    records = [Record(0, 1000 + at, key, b"value") for at, key in enumerate(keys)]
    return bytes(build_batch(records, codec=codec, control=control))


def filter_of(*batches, keys_max=1 << 20):
    builder = KeyFilterBuilder(keys_max)
    for batch in batches:
        builder.take(b"before" + batch + b"behind", 6, 6 + len(batch))
    return builder.finish()


def held(pages: bytes, key: bytes) -> bool:
    count = len(pages) // PAGE_BYTES
    at = page_of(key, count) * PAGE_BYTES
    return may_hold(pages[at : at + PAGE_BYTES], key, count, "there")


@given(
    st.lists(
        st.tuples(
            st.lists(some_keys, min_size=1, max_size=20),
            st.sampled_from(("none", "gzip", "snappy", "lz4", "zstd")),
        ),
        max_size=5,
    )
)
def test_no_key_of_the_segment_is_denied(batches):
    pages = filter_of(*(batch_of(keys, codec) for keys, codec in batches))
    assert len(pages) == PAGE_BYTES
    assert all(held(pages, key) for keys, _ in batches for key in keys if key is not None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keys", [1, 1700, 30_000])
def test_one_in_a_thousand_other_keys_is_affirmed_at_most(shape, keys):
    key_of = SHAPES[shape]
    distinct = DISTINCT.get(shape, 50_000)
    keys = min(keys, distinct // 2)
    batches = [
        batch_of([key_of(n) for n in range(at, min(at + 1000, keys))])
        for at in range(0, keys, 1000)
    ]
    pages = filter_of(*batches, *batches)  # a key that repeats takes no further room
    assert len(pages) == PAGE_BYTES * -(-keys // 1700)
    assert all(held(pages, key_of(n)) for n in range(keys))
    others = min(20_000, distinct - keys)
    assert sum(held(pages, key_of(n)) for n in range(keys, keys + others)) <= others // 1000
    for at in range(0, len(pages), PAGE_BYTES):
        assert pages[at + 5] == 0, "a page of so many random keys is not full"
        assert max(pages[at + 8 : at + 264]) <= BUCKET_MOST


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=300), st.integers(1, 9))
def test_compiled_and_interpreted_code_agree(keys, pages):
    body = batch_of(keys)[HEADER_SIZE:]
    whole, end = b"before" + body + body, 6 + len(body)
    results = []
    for module in (imported, PLAIN):
        hashes = module.KeyHashes()
        assert hashes.note(whole, 6, end, len(keys))
        assert not hashes.note(whole, 6, end, len(keys) + 1)
        assert not hashes.note(whole, 6, end - 1, len(keys))
        assert not hashes.note(body[:-1], 0, len(body) - 1, len(keys))
        assert hashes.held() == len(keys)
        assert hashes.dedupe() == len({module.key_hash(key) for key in keys})
        results.append(hashes.pages(pages, PAGE_BYTES - 8))
    assert results[0] == results[1]
    assert [held for held, _ in results[0]] == [len(page) for page in laid_out(keys, pages)]
    assert [body for _, body in results[0]] == list(map(body_of, laid_out(keys, pages)))


def laid_out(keys: list[bytes], pages: int) -> list[list[tuple[int, int]]]:
    """Return the (bucket, fingerprint) of the keys of each page, in the order of hashes: the format, once more."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(pages)]
    for hashed in sorted({imported.key_hash(key) for key in keys}):
        scaled = (hashed >> 16) * pages
        found[scaled >> 32].append(((scaled & 0xFFFFFFFF) >> 24, hashed & 0xFFFF))
    return found


def body_of(page: list[tuple[int, int]]) -> bytes:
    counts = Counter(bucket for bucket, _ in page)
    body = bytes(counts[bucket] for bucket in range(256))
    return (body + b"".join(one.to_bytes(2, "big") for _, one in page)).ljust(PAGE_BYTES - 8, b"\0")


numbers = st.integers(0, (1 << 48) - 1)


@given(st.one_of(st.lists(numbers), st.lists(st.integers(0, 9), max_size=200)), st.booleans())
def test_hashes_are_sorted_also_where_their_upper_halves_are_equal(found, falls):
    found = sorted(found, reverse=True) if falls else found
    for module in (imported, PLAIN):
        hashes = vec[i64]([*found, -1])
        module._sort(hashes, len(found))
        assert list(hashes) == [*sorted(found), -1], "what lies behind them stays"


@pytest.mark.parametrize("count", [2, 8, 9, 300])
def test_hashes_that_were_chosen_to_cost_many_moves_are_sorted_by_all_digits(count):
    falling = list(range(count, 0, -1))
    for module in (imported, PLAIN):
        hashes = vec[i64](falling)
        assert module._insert(hashes, count) == (count * (count - 1) // 2 <= 4 * count)
        hashes = vec[i64](falling)
        module._sort(hashes, count)
        assert list(hashes) == sorted(falling)


def test_hashes_never_change():
    keys = (b"", b"key", b"user-000000000001", bytes(100), b"\0", bytes(8), bytes(9), b"\xff" * 16)
    assert [imported.key_hash(key) for key in keys] == [
        *(16646257680440, 88517916871591, 85681687022641, 211160114021847),
        *(258036468371696, 83035883053179, 173111864439293, 67686708998672),
    ]


def keys_where(chosen: Callable[[int], bool], count: int) -> list[bytes]:
    """Return the first decimal keys whose hashes are chosen."""
    found = (key for key in map(b"%d".__mod__, itertools.count()) if chosen(imported.key_hash(key)))
    return list(itertools.islice(found, count))


def test_an_overfull_bucket_or_page_affirms_every_key():
    one_bucket = keys_where(lambda hashed: hashed >> 40 == 0, 256)
    first_half = keys_where(lambda hashed: hashed >> 47 == 0, 1917)
    for keys, pages in ((one_bucket, 1), (first_half, 2)):
        others = [b"other %d" % at for at in range(KEYS_PER_PAGE * pages - len(keys))]
        filled = filter_of(batch_of(keys), batch_of(others) if pages > 1 else b"")
        assert len(filled) == pages * PAGE_BYTES
        assert filled[5] == 1, "the flag: full"
        assert int.from_bytes(filled[6:8], "big") >= len(keys)
        assert may_hold(filled[:PAGE_BYTES], b"any", pages, "there")
    assert not may_hold(filled[PAGE_BYTES:], b"any", 2, "there")


def test_a_segment_of_too_many_keys_or_unreadable_records_has_no_filter():
    many = batch_of([b"%d" % n for n in range(2000)])
    assert filter_of(many, keys_max=2000)
    assert filter_of(many, keys_max=1999) == b""
    unreadable = bytearray(batch_of([b"key"], "zstd"))
    unreadable[HEADER_SIZE:] = b"x" * (len(unreadable) - HEADER_SIZE)
    unsound = bytearray(batch_of([b"key"]))
    unsound[HEADER_SIZE] = 0
    for batch in (unreadable, unsound):
        assert filter_of(many, bytes(batch), many) == b""


def test_markers_are_no_keys():
    pages = filter_of(batch_of([b"\0\0\0\1"], control=True))
    assert not held(pages, b"\0\0\0\1")


def test_a_damaged_page_and_an_unknown_version_are_refused():
    page = filter_of(batch_of([b"key"]))
    with pytest.raises(Corrupt, match="there: a page of its key filter fails its checksum"):
        may_hold(page[:-1] + b"x", b"key", 1, "there")
    later = bytearray(page)
    later[4] = 3
    later[:4] = crc32c(later[4:]).to_bytes(4, "big")
    with pytest.raises(Corrupt, match="there: its key filter has version 3, not 2"):
        may_hold(bytes(later), b"key", 1, "there")
