"""A request may change each credential of a user once; a refused change refuses all of that user.

A new user's name has no control character; a user of Apache Kafka that has one can be deleted.
"""

import pytest

from stratalog.errors import ErrorCode
from stratalog.metadata.image import Image
from stratalog.quorum.scram_credentials import Deletion, Upsertion, alteration_records

NONE, TWICE, MISSING = (
    ErrorCode.none,
    ErrorCode.duplicate_resource,
    ErrorCode.resource_not_found,
)


def new(mechanism: int, user: str = "a") -> Upsertion:
    return Upsertion(user, mechanism, 4096, b"salt", bytes(32 * mechanism))


@pytest.mark.parametrize(
    ("deletions", "upsertions", "code", "count"),
    [
        ([], [new(1)], NONE, 1),
        ([], [new(1), new(2)], NONE, 2),  # Kafka 4.3 refuses it, and documents it
        ([], [new(1), new(1)], TWICE, 0),
        ([Deletion("a", 1)], [], MISSING, 0),
        ([Deletion("a", 1), Deletion("a", 1)], [], TWICE, 0),
        ([Deletion("a", 1)], [new(1)], TWICE, 0),
        ([Deletion("a", 1)], [new(2)], MISSING, 0),
    ],
)
def test_each_credential_is_changed_once(
    deletions: list[Deletion], upsertions: list[Upsertion], code: ErrorCode, count: int
) -> None:
    records, results = alteration_records(Image(), deletions, [*upsertions, new(1, "b")])
    refusal = results["a"]
    assert (NONE if refusal is None else refusal.code) == code
    assert results["b"] is None
    assert [record.name for record in records] == ["a"] * count + ["b"]


@pytest.mark.parametrize(
    "name", ["a\nb", "a\rb", "a\tb", "a\0b", "a\x1b[31mb", "a\x7fb", "\u2028", "\u202e"]
)
def test_a_name_that_cannot_be_printed_is_deleted_only(name: str) -> None:
    records, results = alteration_records(Image(), [], [new(1, name)])
    refusal = results[name]
    assert refusal is not None
    assert (records, refusal.code) == ([], ErrorCode.unacceptable_credential)
    assert name not in str(refusal)
    (there,) = alteration_records(Image(), [], [new(1, "a")])[0]
    key = (type(there).__name__, (name, 1))
    image = Image(foreign={key: there})
    records, results = alteration_records(image, [Deletion(name, 1)], [])
    assert ([one.name for one in records], results) == ([name], {name: None})


@pytest.mark.parametrize("name", ["a,b", "a=b", "CN=a,OU=b", " x ", "ü;", "a=2C"])
def test_names_that_kafka_takes_are_taken(name: str) -> None:
    records, results = alteration_records(Image(), [], [new(1, name)])
    assert ([one.name for one in records], results) == ([name], {name: None})
