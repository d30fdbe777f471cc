"""What reading took: how much was asked for, and what came of it.

In: counts. Out: their sums, and one line for people. It never decides anything.
"""

from dataclasses import dataclass

__all__ = ["Figures"]


@dataclass(slots=True)
class Figures:
    """Requests and bytes by where they went to, and the records that became rows. Objects' indexes count too.

    `skipped`: offsets that could not be read and were passed over, because the reader asked not to fail.
    """

    bucket_requests: int = 0
    bucket_bytes: int = 0
    broker_requests: int = 0
    broker_bytes: int = 0
    records: int = 0
    skipped: int = 0

    def bucket(self, size: int) -> None:
        """Note a request to the bucket."""
        self.bucket_requests += 1
        self.bucket_bytes += size

    def broker(self, size: int) -> None:
        """Note a Fetch."""
        self.broker_requests += 1
        self.broker_bytes += size

    def __str__(self) -> str:
        lost = f"; {self.skipped} offsets skipped" if self.skipped else ""
        return (
            f"{self.records} records; from the bucket {self.bucket_bytes} bytes in {self.bucket_requests} requests, "
            f"from brokers {self.broker_bytes} in {self.broker_requests}{lost}"
        )
