"""Levels of metadata.version outside of those that are known, and records that a later level has."""

import pytest

from stratalog.errors import Corrupt
from stratalog.metadata.levels import check_level, unreadable


@pytest.mark.parametrize("level", range(25, 31))
def test_the_levels_of_kafka_4_are_known(level):
    check_level(level)


@pytest.mark.parametrize(("level", "remedy"), [(24, "kafka-features.sh"), (31, "a later release")])
def test_another_level_is_refused_with_a_remedy(level, remedy):
    with pytest.raises(Corrupt, match=f"metadata.version {level}, known are 25 to 30; .*{remedy}"):
        check_level(level)


@pytest.mark.parametrize("level", [None, 20, 30])
def test_damage_in_a_log_of_a_known_or_earlier_level_is_damage(level):
    assert str(unreadable(Corrupt("number 40"), level)) == "number 40"


def test_records_of_a_later_level_are_named_by_it():
    assert "metadata.version 31" in str(unreadable(Corrupt("number 40"), 31))
