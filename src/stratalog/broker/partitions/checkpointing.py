"""The checkpoint files of log directories: recovery points, high watermarks, log starts, the mark of a clean close.

In: hosted partitions. Out: files in their directories. It never reads a checkpoint: `survey.py` does, at the start.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import structlog

from stratalog.broker.partitions.partition import HostedPartition
from stratalog.broker.storage.directory import LogDirectory
from stratalog.broker.storage.survey import Checkpoint, checkpoint_files
from stratalog.errors import Rejected
from stratalog.log.checkpoints import CLEAN_SHUTDOWN, encode_clean_shutdown
from stratalog.log.effects import WriteFile, together
from stratalog.wire.ids import TopicIdPartition, TopicPartition

_CLEAN: Final = WriteFile(CLEAN_SHUTDOWN, encode_clean_shutdown(-1))


class Checkpoints:
    """Those of all log directories that were loaded whole: a checkpoint speaks for all that is in a directory."""

    def __init__(self, hosted: Mapping[TopicIdPartition, HostedPartition]) -> None:
        self._hosted = hosted
        self._names: dict[LogDirectory, set[TopicPartition]] = {}
        self._log = structlog.get_logger()

    @property
    def directories(self) -> list[LogDirectory]:
        """The directories that were loaded."""
        return list(self._names)

    def loaded(
        self, directory: LogDirectory, names: set[TopicPartition], lost: Collection[TopicPartition]
    ) -> bool:
        """Note that a directory was loaded, with the names that its files have; return whether one of them is gone.

        The names of `lost` partitions stay: the files say where their logs ended.
        """
        self._names[directory] = names
        present = {one.name for one in self._in(directory)}
        return not names <= present.union(lost)

    def names_any(self, directory: LogDirectory, gone: Iterable[HostedPartition]) -> bool:
        """Return whether the directory's files name one of these partitions."""
        names = self._names[directory]
        return any(one.name in names for one in gone)

    def files(self, directory: LogDirectory) -> list[WriteFile]:
        """Return the directory's files as of now, to be written by the caller."""
        checkpoints = {
            one.name: Checkpoint(one.recovery_point, one.high_watermark, one.log.log_start_offset)
            for one in self._in(directory)
        }
        self._names[directory] = set(checkpoints)
        return checkpoint_files(checkpoints)

    async def write(self, directory: LogDirectory) -> None:
        """Write the directory's files. Raises Rejected where it has failed."""
        await directory.write(self.files(directory))
        await directory.space()

    async def close(self) -> None:
        """Close every log cleanly, checkpoint, and leave the mark that nothing needs recovery."""
        closing = []
        for directory in self._names:
            hosted = self._in(directory)
            if directory.failure is None and not any(one.is_holding for one in hosted):
                effects = together(effect for one in hosted for effect in one.log.close())
                effects += [*self.files(directory), _CLEAN]
                closing.append((directory, directory.write(effects)))
        for directory, work in closing:
            try:
                await work
            except Rejected as error:
                self._log.error("not closed cleanly", path=directory.path, reason=error.message)

    def _in(self, directory: LogDirectory) -> list[HostedPartition]:
        """The partitions here, and those whose move here is about to end."""
        return [one for one in self._hosted.values() if directory in (one.directory, one.arriving)]
