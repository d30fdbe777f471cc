"""Backoff: the wait before the next attempt after a failure.

In: random numbers. Out: seconds, doubled after each failure up to a limit. Each wait has a random part, so that many
callers that failed together do not retry together. It never waits and never reads a clock. (Kafka:
ExponentialBackoff.)
"""

from dataclasses import dataclass

from stratalog.ports import Entropy

__all__ = ["Backoff"]


@dataclass(slots=True)
class Backoff:
    """Times are milliseconds; `jitter` 0.2 means a fifth more or less."""

    initial_ms: int
    max_ms: int
    jitter: float
    entropy: Entropy
    failures: int = 0

    def failed(self) -> float:
        """Count a failure; return the seconds to wait before the next attempt."""
        doubled = min(self.initial_ms << min(self.failures, 30), self.max_ms)
        self.failures += 1
        off = self.entropy.uniform(1 - self.jitter, 1 + self.jitter)
        return min(doubled * off, self.max_ms) / 1000

    def succeeded(self) -> None:
        """Reset: the next failure counts as the first."""
        self.failures = 0
