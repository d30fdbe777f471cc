"""Loading one partition at the start of a node, with a line in the log for what is not as it was written.

In: what a survey found in a log directory. Out: the partition's log. It decides nothing of what is loaded.
"""

import structlog

from stratalog.broker.directory import LogDirectory
from stratalog.broker.survey import Survey, parse_directory_name, partition_name
from stratalog.config import LogConfig
from stratalog.log.partition_log import PartitionLog, TailBudget
from stratalog.log.recovery import load

_log = structlog.get_logger()


async def load_partition(
    directory: LogDirectory,
    found: str,
    survey: Survey,
    config: LogConfig,
    *,
    now_ms: int,
    tails: TailBudget,
) -> PartitionLog:
    """Load a partition; `found` is the name that its directory had when the survey was made.

    Raises Corrupt, FileNotFoundError where a file went away meanwhile, and Rejected for a failed log directory.
    """
    name = partition_name(found)
    key = parse_directory_name(name)
    assert key is not None
    tiered_end, tiered_start = survey.tiered[found] or (0, 0)
    program = load(
        name,
        config,
        # The mark speaks for what the checkpoints name: other directories were not loaded then.
        clean=survey.clean and name == found and key in survey.recovery_points,
        recovery_point=survey.recovery_points.get(key, 0),
        now_ms=now_ms,
        log_start_offset=max(survey.log_starts.get(key, 0), tiered_start),
        tiered_end=tiered_end,
        tails=tails,
    )
    log = await directory.run(program)
    if log.recovered.bytes_cut:
        _log.warning("torn tail cut", partition=name, bytes=log.recovered.bytes_cut)
    return log
