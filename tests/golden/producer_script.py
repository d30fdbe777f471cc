"""Play a producer story: batches of idempotent producers against one partition's log on a simulated disk.

In: lines such as `produce p7 seq=0 count=3`. Out: the answers and the producers that the log remembers. It uses the log
as a broker does, and never touches its inner state.
"""

from tests.log_steps import Steps, batch

from stratalog.config import LogConfig
from stratalog.errors import Rejected

START_MS = 1_000_000
RECORD_BYTES = 20


class Story:
    def __init__(self):
        self.config = {"segment_bytes": 1000, "producer_id_expiration_ms": 60_000}
        self.steps = None

    def run(self, command):
        """Run one command; yield one line for each event."""
        verb, *words = command.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        if verb == "set":
            self.config |= {name: int(value) for name, value in options.items()}
            return []
        if self.steps is None:
            self.steps = Steps(LogConfig(**self.config), now_ms=START_MS)
        return list(getattr(self, "_" + verb.replace("-", "_"))(*plain, **options))

    def _produce(self, producer, seq, count="1", epoch="0", timestamp=None):
        data = batch(
            int(count),
            timestamp=self.steps.now_ms if timestamp is None else int(timestamp),
            size=RECORD_BYTES,
            producer_id=int(producer[1:]),
            producer_epoch=int(epoch),
            base_sequence=int(seq),
        )
        end = self.steps.log.next_offset
        try:
            appended = self.steps.append(data)
        except Rejected as refused:
            assert self.steps.log.next_offset == end
            yield f"{producer} <- {refused.code.name.upper()}"
            return
        how = "again " if appended.duplicate else ""
        yield f"{producer} <- {how}{appended.base_offset}..{appended.last_offset}"
        assert (self.steps.log.next_offset == end) == appended.duplicate

    def _fill(self, count):
        """Append records without a producer id, each as large as a segment."""
        for _ in range(int(count)):
            self.steps.append(batch(30, timestamp=self.steps.now_ms, size=RECORD_BYTES))
        yield f"log {self.steps.log.log_start_offset}..{self.steps.log.log_end_offset}"

    def _wait(self, ms):
        self.steps.now_ms += int(ms)
        self.steps.due()
        self.steps.perform_all()
        return ()

    def _keep(self, **limits):
        """Apply retention with new limits."""
        self.config |= {name: int(value) for name, value in limits.items()}
        self.steps.log.config = LogConfig(**self.config)
        self.steps.due()
        self.steps.perform_all()
        yield f"log {self.steps.log.log_start_offset}..{self.steps.log.log_end_offset}"

    def _delete_records(self, below):
        self.steps.log.raise_log_start(int(below))
        yield from self._keep()

    def _restart(self):
        self.steps.restart()
        yield from self._known()

    def _kill(self):
        """Kill the process: the disk has all written bytes, and no file was closed."""
        self.steps.load(clean=False)
        yield from self._known()

    def _truncate(self, offset):
        """Truncate as a follower does: drop the records that the new leader does not have."""
        self.steps.truncate(int(offset))
        yield from self._known()

    def _known(self):
        found = sorted(self.steps.log.producers.items())
        for producer_id, state in found:
            batches = " ".join(f"{one[0]}-{one[1]}@{one[2]}" for one in state.batches)
            yield f"p{producer_id} epoch={state.epoch} {batches}".rstrip()
        if not found:
            yield "no producer is known"
