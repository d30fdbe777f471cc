"""Count the requests, bytes and records of reading a topic.

In: counts. Out: their sums, and one line for people. It never decides anything.
"""

from dataclasses import dataclass

__all__ = ["ReadMetrics"]


@dataclass(slots=True)
class ReadMetrics:
    """Requests to and bytes from bucket and brokers, indexes included, and the records that became rows.

    `skipped`: offsets that could not be read, where `fail_on_data_loss` is False.
    """

    bucket_requests: int = 0
    bucket_bytes: int = 0
    broker_requests: int = 0
    broker_bytes: int = 0
    records: int = 0
    skipped: int = 0

    def bucket(self, size: int) -> None:
        """Count a request to the bucket."""
        self.bucket_requests += 1
        self.bucket_bytes += size

    def broker(self, size: int) -> None:
        """Count a Fetch."""
        self.broker_requests += 1
        self.broker_bytes += size

    def __str__(self) -> str:
        lost = f"; {self.skipped} offsets skipped" if self.skipped else ""
        return (
            f"{self.records} records; from the bucket {self.bucket_bytes} bytes in {self.bucket_requests} requests, "
            f"from brokers {self.broker_bytes} in {self.broker_requests}{lost}"
        )
