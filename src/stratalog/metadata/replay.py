"""Replay a metadata log: build the image, and note the voters and the deleted topics.

In: the image of a snapshot, then the records after it, each with the epoch of its batch. Out: the image at the end of
the log. It never reads a log, and never decides.
"""

from typing import Any
from uuid import UUID

from stratalog.metadata.delta import Delta
from stratalog.metadata.image import EMPTY, Image
from stratalog.wire.internal.control_records import VotersRecord

__all__ = ["Replay"]


class Replay:
    """One pass over a metadata log, from a snapshot on."""

    def __init__(self, image: Image = EMPTY, voters: VotersRecord | None = None) -> None:
        self.voters = voters
        """The last Voters record; None before the first."""
        self._loaded_to = image.offset
        self._delta = Delta(image)

    def replay(self, offset: int, epoch: int, record: Any) -> None:
        """Apply the record at `offset`, unless the snapshot contains it. Raises Corrupt as `Delta.replay`.

        `epoch` lies outside of a batch's CRC: a damaged one must not end the node, so an epoch never falls.
        """
        if offset <= self._loaded_to:
            return
        self._delta.epoch = max(self._delta.epoch, epoch)
        self._delta.replay(offset, record)
        if isinstance(record, VotersRecord):
            self.voters = record

    @property
    def removed_topics(self) -> set[UUID]:
        """Topics that a record of the log deleted; those that the snapshot lacks already are not among them."""
        return self._delta.removed_topics

    def image(self) -> Image:
        """Return the image after everything that was replayed so far."""
        return self._delta.image()
