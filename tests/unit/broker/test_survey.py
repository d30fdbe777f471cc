"""What is found in a log directory before anything of it is loaded."""

from random import Random

import pytest
from tests.sim.disk import SimDisk

from stratalog.broker.survey import survey_directory
from stratalog.log.checkpoints import CLEAN_SHUTDOWN
from stratalog.log.effects import run


@pytest.mark.parametrize("seed", range(12))
def test_the_mark_of_a_clean_stop_does_not_come_back_after_a_loss_of_power(seed: int) -> None:
    """Or what was written since, and never synced, would be taken for sound."""
    disk = SimDisk()
    disk.write_file(CLEAN_SHUTDOWN, b"")
    assert run(disk, survey_directory()).clean
    disk.crash(Random(seed))
    assert not run(disk, survey_directory()).clean
