"""Plan a batch query from its options: its range, and the tasks that read it.

In: options, and the log that they name. Out: offsets by partition, tasks in order of partitions and offsets. It reads
no records; `tasks.py` does.
"""

from collections.abc import Sequence

from stratalog.errors import BadOption
from stratalog.table import bounds
from stratalog.table.key_lookup import without_keys
from stratalog.table.log import Log, Snapshot
from stratalog.table.metrics import ReadMetrics
from stratalog.table.options import EARLIEST, LATEST, Bound, Options
from stratalog.table.places import Shared, damage_log, store_at
from stratalog.table.plan import Range, Task, plan
from stratalog.table.pruning import Pruning
from stratalog.tier.formats.manifest import Manifest, RemoteSegment
from stratalog.wire.ids import TopicIdPartition


def shared_of(options: Options) -> Shared:
    """Return the values that every task of a query with these options shares."""
    return Shared(
        options.bootstrap,
        options.tier_url,
        options.columns,
        options.isolation,
        options.fail_on_data_loss,
        options.client_id,
        options.request_timeout_s,
        options.api_timeout_s,
        options.secured,
    )


def starting_offsets(
    log: Log, snapshot: Snapshot, options: Options, default: int
) -> dict[TopicIdPartition, int]:
    """Return the first offset of each partition. Raises BadOption naming the option."""
    bound = options.starting or Bound(everywhere=default)
    late_is_error = options.late_timestamp_is_error
    return _resolve(log, snapshot, bound, "starting", late_is_error=late_is_error)


def batch_tasks(
    options: Options, pruning: Pruning | None = None, metrics: ReadMetrics | None = None
) -> list[Task]:
    """Return tasks for everything between the two present bounds that `pruning` does not rule out.

    `metrics` receives the pages of key filters that planning reads.
    Raises BadOption for options that the log cannot fulfil, DataLoss, Missing, Unavailable, Corrupt, Rejected.
    """
    if options.starting is not None and options.starting.has(LATEST):
        raise BadOption("option 'startingOffsets': a batch cannot begin at the end ('latest', -1)")
    log = Log(options, shared_of(options))
    snapshot = log.snapshot()
    first = starting_offsets(log, snapshot, options, EARLIEST)
    ending = options.ending or Bound(everywhere=LATEST)
    end = _resolve(log, snapshot, ending, "ending", late_is_error=False)
    bounds.check_order(snapshot, first, end)
    if pruning is not None:
        first, end = pruning.cut(
            snapshot, first, end, lambda wanted: log.not_before(snapshot, wanted)
        )
    wanted = bounds.ranges(snapshot, first, end, fail_on_data_loss=options.fail_on_data_loss)
    if pruning is not None:
        wanted = [(pruning.narrowed(one), manifest) for one, manifest in wanted]
    return planned(log, wanted, options, metrics)


def planned(
    log: Log,
    wanted: Sequence[tuple[Range, Manifest | None]],
    options: Options,
    metrics: ReadMetrics | None = None,
) -> list[Task]:
    """Return the tasks that read these ranges, under a read lease.

    Raises Missing and Corrupt for missing or damaged objects, unless the options permit skipping them.
    """
    located = log.located(wanted)
    tasks = plan(
        located,
        has_broker=log.has_broker,
        min_tasks=options.min_partitions,
        max_records=options.max_records_per_partition,
        ruled_out=_ruled_out(located, options, metrics or ReadMetrics()),
        missing=damage_log(fail=options.fail_on_data_loss),
    )
    return log.leased(tasks, wanted)


def _ruled_out(
    located: Sequence[tuple[Range, Sequence[RemoteSegment]]], options: Options, metrics: ReadMetrics
) -> frozenset[str]:
    """Return the paths of segments without a requested key, by their key filters."""
    if options.tier_url is None:
        return frozenset()
    store = store_at(options.tier_url)
    paths: set[str] = set()
    for wanted, segments in located:
        if wanted.keys is not None:
            paths |= without_keys(segments, wanted.keys, store, metrics)
    return frozenset(paths)


def _resolve(
    log: Log, snapshot: Snapshot, bound: Bound, side: str, *, late_is_error: bool
) -> dict[TopicIdPartition, int]:
    return bounds.resolve(
        bound,
        snapshot,
        lambda wanted: log.offsets_at(snapshot, wanted),
        side,
        late_is_error=late_is_error,
    )
