"""Track which leader epoch began at which offset.

In: epochs and their first offsets. Out: the end offset of an epoch, and the text of `leader-epoch-checkpoint`. It
never decides which broker leads. Kafka: `LeaderEpochFileCache`; KIP-101, KIP-279.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from stratalog.log.checkpoints import decode_epochs, encode_epochs

__all__ = ["NO_EPOCH", "NO_OFFSET", "LeaderEpochs"]

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """Pairs (epoch, first offset), both ascending. `dirty`: the file on disk is older."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.assign(epoch, start)
        self.dirty = False

    @property
    def latest(self) -> int:
        """The newest epoch, -1 for none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def first_offset(self) -> int:
        """First offset of the oldest known epoch, -1 for none."""
        return self._starts[0] if self._starts else NO_OFFSET

    def entries(self) -> list[tuple[int, int]]:
        """Return every (epoch, first offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start: int) -> None:
        """Note that `epoch` begins at offset `start`; it replaces older epochs without offsets.

        An epoch that is not newer than the latest changes nothing.
        """
        if epoch < 0 or epoch <= self.latest:
            return
        self.truncate_end(start)
        self._epochs.append(epoch)
        self._starts.append(start)
        self.dirty = True

    def truncate_end(self, offset: int) -> None:
        """Forget epochs that begin at `offset` or later."""
        keep = bisect_left(self._starts, offset)
        if keep < len(self._starts):
            del self._epochs[keep:], self._starts[keep:]
            self.dirty = True

    def truncate_start(self, offset: int) -> None:
        """Forget epochs that end at or before `offset`; the one that holds it begins there from now on."""
        keep = bisect_right(self._starts, offset) - 1
        if keep < 0 or (keep == 0 and self._starts[0] == offset):
            return
        del self._epochs[:keep], self._starts[:keep]
        self._starts[0] = offset
        self.dirty = True

    def epoch_of(self, offset: int) -> int:
        """Return the epoch in which `offset` was written, -1 if that is not known."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else NO_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` and the offset after its last; (-1, -1) where `epoch` is newer than
        all.

        For an `epoch` older than every known one, return that epoch and the first known offset.
        """
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        floor = self._epochs[above - 1] if above else epoch
        return floor, self._starts[above]

    def between(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the epochs of offsets [start, end), the first clipped to `start`."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        last = bisect_left(self._starts, end)
        pairs = zip(self._epochs[first:last], self._starts[first:last], strict=True)
        return [(epoch, max(begin, start)) for epoch, begin in pairs]

    def encode(self) -> bytes:
        """Return the `leader-epoch-checkpoint` file."""
        return encode_epochs(self.entries())

    @classmethod
    def decode(cls, data: bytes) -> "LeaderEpochs":
        """Raise Corrupt where the text is no such file."""
        return cls(decode_epochs(data))
