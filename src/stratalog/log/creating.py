"""Create a new partition's log.

In: a directory and a topic's settings. Out: an empty PartitionLog, and the effects that make its directory. It never
checks whether files exist: `recovery.load` does.
"""

import uuid

from stratalog.config import LogConfig
from stratalog.log.checkpoints import PARTITION_METADATA, encode_partition_metadata
from stratalog.log.effects import Append, Effect, MakeDirectory, Sync, SyncDirectory
from stratalog.log.epochs import LeaderEpochs
from stratalog.log.partition_log import PartitionLog
from stratalog.log.producers import ProducerStates
from stratalog.log.segment import Segment
from stratalog.log.tail import TailBudget
from stratalog.log.values import Contents, Recovered


def create(
    directory: str,
    topic_id: uuid.UUID,
    config: LogConfig,
    *,
    now_ms: int,
    start_offset: int = 0,
    tails: TailBudget | None = None,
) -> tuple[PartitionLog, tuple[Effect, ...]]:
    """Return a new, empty log, and the effects that make its directory. `start_offset` above 0 continues a restored
    log.

    `tails` is the memory budget that its newest batches share with other logs'; by default the log has its own budget.
    """
    segment = Segment(directory, start_offset, now_ms)
    identity = f"{directory}/{PARTITION_METADATA}"
    contents = Contents(
        segments=[segment],
        producers=ProducerStates(),
        epochs=LeaderEpochs(),
        snapshots=set(),
        log_start_offset=start_offset,
        recovery_point=start_offset,
        recovered=Recovered(0, 0),
    )
    log = PartitionLog(directory, topic_id, config, contents, tails=tails or TailBudget())
    return log, (
        MakeDirectory(directory),
        Append(identity, 0, (encode_partition_metadata(topic_id),)),
        Append(segment.path, 0, ()),
        Sync(identity),
        SyncDirectory(directory),
        SyncDirectory(""),
    )
