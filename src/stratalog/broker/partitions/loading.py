"""Load partitions at the start of a node, all log directories at once, each on its own thread.

In: the surveys of the log directories, and metadata. Out: logs, damaged partitions, moves to begin again. It decides
nothing: `copies.py` chooses among a partition's directories, `log/recovery.py` recovers its log.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from uuid import UUID

import structlog
from msgspec import Struct

from stratalog.broker.partitions.checkpointing import Checkpoints
from stratalog.broker.storage.asides import Asides
from stratalog.broker.storage.copies import Claim, Lost, choose_copies, find_lost
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import (
    KAFKAS_TIER,
    NO_EPOCH,
    Survey,
    files_of,
    kafkas_tier,
    parse_directory_name,
    partition_name,
    survey_directory,
)
from stratalog.config import LogConfig
from stratalog.errors import Corrupt, Rejected, UserError
from stratalog.log.checkpoints import LOG_START_OFFSETS, REPLICATION_OFFSETS
from stratalog.log.effects import Effect, Rename, SyncDirectory
from stratalog.log.partition_log import PartitionLog
from stratalog.log.recovery import load
from stratalog.log.tail import TailBudget
from stratalog.metadata.image import Image, Topic
from stratalog.ports import Clock
from stratalog.wire.ids import TopicIdPartition, TopicPartition

_log = structlog.get_logger()


class Loaded(Struct, frozen=True):
    """A loaded partition. `was_tiered`: a tier's manifest lay beside its log."""

    name: TopicPartition
    topic: Topic
    log: PartitionLog
    directory: LogDirectory
    high_watermark: int
    was_tiered: bool


class Loading:
    """The loading at one start of a node. Call `run`."""

    def __init__(
        self,
        asides: Asides,
        checkpoints: Checkpoints,
        clock: Clock,
        tails: TailBudget,
        add: Callable[[Loaded], None],
    ) -> None:
        """`add` receives each loaded partition."""
        self.damaged: dict[TopicIdPartition, str] = {}
        """Partitions that are offline, as their directories are damaged, with the reason."""
        self.resumed: list[tuple[TopicIdPartition, str]] = []
        """Moves that a crash interrupted, with their target directories."""
        self.lost: dict[TopicPartition, Lost] = {}
        """Partitions that had records and have no directory any more."""
        self.previous_epoch = NO_EPOCH
        """The broker epoch that the last clean shutdown left in every directory; -1 where one of them has another."""
        self._asides = asides
        self._checkpoints = checkpoints
        self._clock = clock
        self._tails = tails
        self._add = add

    async def run(
        self,
        directories: Sequence[LogDirectory],
        image: Image,
        node_id: int,
        removed_topics: Collection[UUID],
        config_of: Callable[[Topic], LogConfig],
    ) -> None:
        """Load every partition that metadata knows. An unreadable directory counts as failed.

        Raises UserError where two directories hold the same partition, and where Apache Kafka tiered a topic.
        """
        surveys: dict[LogDirectory, Survey] = {}

        async def survey(directory: LogDirectory) -> None:
            try:
                surveys[directory] = await directory.run(survey_directory())
                await directory.space()
            except Rejected as error:
                surveys.pop(directory, None)
                _log.error("log directory away", path=directory.path, reason=error.message)

        async def load_one(directory: LogDirectory, claim: Claim) -> None:
            try:
                await self._load_directory(directory, surveys[directory], claim, config_of)
            except Rejected as error:
                _log.error("log directory away", path=directory.path, reason=error.message)

        async with asyncio.TaskGroup() as surveying:
            for directory in directories:
                surveying.create_task(survey(directory))
        surveys = {one: surveys[one] for one in directories if one in surveys}
        some_away = len(surveys) < len(directories)
        if not some_away and len(epochs := {one.broker_epoch for one in surveys.values()}) == 1:
            (self.previous_epoch,) = epochs
        if not surveys:
            return

        def choose() -> tuple[dict[LogDirectory, Claim], dict[TopicPartition, Lost]]:
            claims = choose_copies(surveys, image, node_id, removed_topics, some_away=some_away)
            return claims, find_lost(surveys)

        # With a hundred thousand partitions it takes seconds.
        claims, self.lost = await next(iter(surveys)).compute(choose)
        if KAFKAS_TIER in image.topic_ids_by_name:
            for directory, claim in claims.items():
                with suppress(Rejected):  # the directory is away; its loading logs that
                    await _refuse_kafkas_tier(directory, surveys[directory], claim, config_of)
        async with asyncio.TaskGroup() as loading:
            for directory, claim in claims.items():
                loading.create_task(load_one(directory, claim))

    async def _load_directory(
        self,
        directory: LogDirectory,
        survey: Survey,
        claim: Claim,
        config_of: Callable[[Topic], LogConfig],
    ) -> None:
        leftovers = survey.leftovers
        self._asides.keep(directory, (*claim.stray, *claim.left, *claim.damaged))
        deleted = self._asides.rename_deleted(claim.deleted)
        leftovers += deleted.values()
        effects: list[Effect] = [Rename(name, aside) for name, aside in deleted.items()]
        for future, name in claim.promoted.items():
            effects += [*self._asides.free(directory, name), Rename(future, name)]
        if effects:
            await directory.write([*effects, SyncDirectory("")])
        for name in claim.stray:
            reason = survey.unreadable.get(name, "metadata does not know its topic id")
            _log.warning("stray partition", path=directory.path, partition=name, reason=reason)
        for name, (key, reason) in claim.damaged.items():
            self._damage(key, name, f"{directory.path}/{reason}")
        for name in claim.left:
            _log.error("its log directory is away", partition=name, untouched=directory.path)
        # The files record where the logs of lost partitions ended: those names stay.
        kept = sum(name in survey.checkpointed for name in self.lost)
        for name, topic in claim.loaded:
            loaded = await self._load(directory, name, topic, config_of(topic), survey)
            kept += loaded in survey.checkpointed
        self.resumed += [(key, directory.path) for key in claim.resumed]
        self._checkpoints.loaded(directory, survey.checkpointed)
        if kept < len(survey.checkpointed):
            # Done before a topic of the same name is created: the new topic must not inherit these checkpoints.
            await self._checkpoints.write(directory)
        self._asides.remove(directory, leftovers)
        _log.info(
            "log directory loaded",
            path=directory.path,
            partitions=len(claim.loaded),
            clean=survey.clean,
        )

    async def _load(
        self,
        directory: LogDirectory,
        found: str,
        topic: Topic,
        config: LogConfig,
        survey: Survey,
    ) -> TopicPartition | None:
        """Load a partition, and return its name; `found` is the name of its directory in the survey.

        A damaged partition goes offline: return None.
        """
        name = partition_name(found)
        key = parse_directory_name(name)
        assert key is not None
        tiered_end, tiered_start = survey.tiered[found] or (0, 0)
        start = max(_log_start(directory, survey, key), tiered_start)
        program = load(
            name,
            config,
            # The mark of a clean close covers the partitions in the checkpoints: the others were not loaded then.
            clean=survey.clean and name == found and key in survey.recovery_points,
            recovery_point=survey.recovery_points.get(key, 0),
            now_ms=self._clock.steady_ms(),
            log_start_offset=start,
            high_watermark=survey.high_watermarks.get(key, 0),
            tiered_end=tiered_end,
            replicated=len(topic.partitions[key.partition].replicas) > 1,
            was_cleaned=survey.cleaned_ends.get(key, start) > start,
            tails=self._tails,
        )
        try:
            log = await directory.run(program)
        except (Corrupt, FileNotFoundError) as error:
            self._asides.keep(directory, [name])
            self._damage(
                TopicIdPartition(topic.id, key.partition), name, f"{directory.path}/{error}"
            )
            return None
        log.cleaned_end = survey.cleaned_ends.get(key, log.log_start_offset)
        if log.recovered.bytes_cut:
            _log.warning("torn tail cut", partition=name, bytes=log.recovered.bytes_cut)
        for damage in log.recovered.damage:
            path = f"{directory.path}/{damage.path}"
            _log.error("file is damaged", partition=name, file=path, reason=damage.reason)
        high_watermark = min(survey.high_watermarks.get(key, 0), log.log_end_offset)
        is_tiered = survey.tiered[found] is not None
        self._add(Loaded(key, topic, log, directory, high_watermark, is_tiered))
        return key

    def _damage(self, key: TopicIdPartition, name: str, reason: str) -> None:
        """Take a damaged partition offline, and leave its files alone."""
        self.damaged[key] = reason
        _log.error("partition is damaged: it is offline", partition=name, reason=reason)


async def _refuse_kafkas_tier(
    directory: LogDirectory, survey: Survey, claim: Claim, config_of: Callable[[Topic], LogConfig]
) -> None:
    """Raise UserError if only a plugin of Kafka's has a topic's first offsets. Nothing has changed yet."""
    for name, topic in claim.loaded:
        key = parse_directory_name(partition_name(name))
        assert key is not None
        if config_of(topic).remote_storage_enable:
            entries = await directory.run(files_of(name))
            start, path = survey.log_starts.get(key, 0), f"{directory.path}/{name}"
            if reason := kafkas_tier(path, entries, key, start):
                raise UserError(reason)


def _log_start(directory: LogDirectory, survey: Survey, key: TopicPartition) -> int:
    """Return the checkpointed log start; 0 where it lies above the checkpointed high watermark."""
    start = survey.log_starts.get(key, 0)
    end = survey.high_watermarks.get(key, start)
    if start <= end:
        return start
    path = f"{directory.path}/{LOG_START_OFFSETS}"
    reason = f"the log begins at {start} by it, and ends at {end} by {REPLICATION_OFFSETS}"
    _log.error("file is damaged", partition=str(key), file=path, reason=reason)
    return 0
