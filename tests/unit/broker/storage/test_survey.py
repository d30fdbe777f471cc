"""The survey of a log directory before any partition is loaded."""

from random import Random

import pytest
from tests.sim.disk import SimDisk

from stratalog.broker.storage.survey import (
    TIER_INCARNATION,
    TIER_MANIFEST,
    kafkas_tier,
    read_incarnation,
    survey_directory,
)
from stratalog.errors import UserError
from stratalog.log.checkpoints import CLEAN_SHUTDOWN
from stratalog.log.effects import run
from stratalog.wire.ids import TopicPartition


@pytest.mark.parametrize("seed", range(12))
def test_the_mark_of_a_clean_stop_does_not_come_back_after_a_loss_of_power(seed: int) -> None:
    """Otherwise a start would trust records that were written later and never synced."""
    disk = SimDisk()
    disk.write_file(CLEAN_SHUTDOWN, b"")
    assert run(disk, survey_directory()).clean
    disk.crash(Random(seed))
    assert not run(disk, survey_directory()).clean


@pytest.mark.parametrize(
    ("log", "is_unborn"), [(b"", True), (b"x", False)], ids=["empty", "written"]
)
@pytest.mark.parametrize("identity", [None, b"", b"version: 0\nto"], ids=["none", "empty", "torn"])
def test_an_interrupted_creation_of_a_partition_is_not_taken_for_damage(
    identity: bytes | None, log: bytes, *, is_unborn: bool
) -> None:
    """Such a directory may be deleted: no record in it can have been acknowledged."""
    disk = SimDisk()
    disk.make_directory("t-0")
    if identity is not None:
        disk.append("t-0/partition.metadata", 0, [identity])
    disk.append(f"t-0/{0:020}.log", 0, [log])
    found = run(disk, survey_directory())
    assert found.partitions == [("t-0", None)]
    assert found.unborn == ({"t-0"} if is_unborn else set())


def test_the_incarnation_of_a_node_that_an_earlier_release_restored_is_in_a_file():
    disk = SimDisk()
    assert run(disk, read_incarnation()) == 0
    disk.write_file(TIER_INCARNATION, b"3\n")
    assert run(disk, read_incarnation()) == 3
    disk.write_file(TIER_INCARNATION, b"three")
    with pytest.raises(UserError, match="b'three' is no number; restore the node again"):
        run(disk, read_incarnation())


@pytest.mark.parametrize(
    ("log_start", "files", "stored"),
    [
        (0, ["00000000000000000100.log"], "offsets 0 to 99 of topic t"),
        (40, ["00000000000000000100.log", "00000000000000000200.log"], "offsets 40 to 99"),
        (100, ["00000000000000000100.log"], None),
        (0, ["00000000000000000000.log", "00000000000000000100.log"], None),
        (0, ["00000000000000000100.log", TIER_MANIFEST], None),
        (0, [], None),
    ],
)
def test_offsets_that_only_a_plugin_of_kafkas_has_are_named(
    log_start: int, files: list[str], stored: str | None
) -> None:
    reason = kafkas_tier("/data/t-0", files, TopicPartition("t", 0), log_start)
    assert (reason is None) == (stored is None), reason
    assert stored is None or (reason is not None and stored in reason)
