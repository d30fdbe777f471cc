import pytest

from stratalog.coordinators import placement
from stratalog.coordinators.placement import partition_for


@pytest.mark.parametrize(
    ("group_id", "java_hash"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-12345", 158_455_506),
        ("polygenelubricants", -(2**31)),
        ("gruppe-ä", 673_522_898),
        ("𝄞", 1_772_394),
    ],
)
def test_the_hash_of_a_group_equals_javas(group_id, java_hash):
    """Hashes printed by Java's `String.hashCode`; the fourth is Java's smallest int, which has no absolute value."""
    positive = 0 if java_hash == -(2**31) else abs(java_hash)
    for count in (1, 7, 50):
        assert partition_for(group_id, count) == positive % count


def test_long_ids_of_clients_do_not_stay_in_memory():
    placement._kept_hash.cache_clear()
    for number in range(20):
        long, short = f"{number:020}" * 1000, f"{number:020}"
        assert partition_for(long, 50) == placement._hash(long) % 50
        assert partition_for(short, 50) == placement._hash(short) % 50
    assert placement._kept_hash.cache_info().currsize == 20
