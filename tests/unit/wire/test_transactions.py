"""The batches that a reader of committed records skips, from headers and the list of a Fetch answer."""

import pytest

from stratalog.wire.batch import parse_header
from stratalog.wire.records import Record, build_batch
from stratalog.wire.transactions import Aborted


def batch(offset, producer, *, marker=False, plain=False):
    made = build_batch(
        [Record(offset, 100, b"k", b"v")],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=not plain,
        control=marker,
    )
    return parse_header(made)


LOG = [
    batch(10, 1),
    batch(11, 2),
    batch(12, 1, marker=True),  # aborts
    batch(13, 1),
    batch(14, 3, plain=True),
    batch(15, 2, marker=True),  # commits
    batch(16, 2),
    batch(17, 1, marker=True),  # commits
    batch(18, 2, marker=True),  # aborts
    batch(19, 2),
]


@pytest.mark.parametrize(
    ("listed", "hidden"),
    [
        ([], []),
        ([(1, 10), (2, 16)], [10, 16]),
        ([(2, 16), (1, 10)], [10, 16]),
        ([(1, 3)], [10]),  # the transaction began before the fetched records
        ([(4, 10)], []),
        ([(3, 10)], []),  # a batch outside of transactions is not hidden
    ],
)
def test_batches_of_a_listed_producer_are_hidden_up_to_its_next_marker(listed, hidden):
    aborted = Aborted(listed)
    assert [header.base_offset for header in LOG if aborted.has(header)] == hidden
