"""The broker's counters, for metrics.

In: nanoseconds, bytes and answers, as they occur. Out: running totals that only grow. It renders nothing, keeps no
history and reads no clock: the caller passes the time.

Every request runs this code. So a histogram is a list and a bisection, and no counter is looked up by name. Values that
a scrape can compute (offsets, sizes, lag) are not counted here.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from stratalog.errors import ErrorCode
from stratalog.wire.fetch import EncodedResponse
from stratalog.wire.messages.produce import ProduceResponse

_SECOND_NS: Final = 1_000_000_000
_STEPS: Final = (1, 2, 5)
BOUNDS_NS: Final = [step * 10**power for power in range(4, 10) for step in _STEPS] + [
    10 * _SECOND_NS
]
"""Upper bounds of the histograms' buckets: 10 µs to 10 s, three in every decade."""
_READS_A_LINE: Final = 10_000
_CAUSES_MAX: Final = 1000
_OTHER_CAUSES: Final = "other"
NOT_DECODED: Final = -1
"""The API name for frames that are no served request."""


class Histogram:
    """Durations by bucket; the last bucket has durations beyond all bounds.

    Two threads that count at the same time may lose one count.
    """

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0

    def observe(self, duration_ns: int, times: int = 1) -> None:
        """Count `times` of one duration."""
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += times
        self.sum_ns += duration_ns * times


class PartitionMetrics:
    """Bytes and counts of one partition since this broker hosts it."""

    __slots__ = (
        "_unreadable",
        "bytes_in",
        "bytes_out",
        "copied_bytes",
        "copied_segments",
        "copy_errors",
        "corrupt_fetches",
        "delete_errors",
        "messages_out",
        "remote_bytes",
        "remote_errors",
        "remote_reads",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.messages_out = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.corrupt_fetches = 0
        """Answers of the leader with damaged bytes."""
        self.remote_reads = 0
        self.remote_bytes = 0
        self.remote_errors = 0
        self.copied_bytes = 0
        self.copied_segments = 0
        self.copy_errors = 0
        self.delete_errors = 0
        self._unreadable: dict[Hashable, int] | None = (
            None  # hardly any partition needs this counter
        )

    @property
    def unreadable_reads(self) -> int:
        """Reads that found damaged bytes."""
        return sum((self._unreadable or {}).values())

    def unreadable(self, cause: Hashable) -> tuple[int, bool]:
        """Count a read that found damaged bytes; return the number of reads with this cause, and whether to log a line.

        The first, the ten thousandth, the hundred thousandth read and so on are logged, because a consumer repeats a
        failed fetch many times a second.
        """
        if self._unreadable is None:
            self._unreadable = {}
        reads = self._unreadable
        if len(reads) >= _CAUSES_MAX and cause not in reads:
            cause = _OTHER_CAUSES
        count = reads[cause] = reads.get(cause, 0) + 1
        return count, count == 1 or (count >= _READS_A_LINE and is_power_of_ten(count))


def is_power_of_ten(count: int) -> bool:
    """Return whether the line of this number is logged: the first, the tenth, the hundredth and so on."""
    return str(count).strip("0") == "1"


class RequestMetrics:
    """Requests by API, how long each took, and the errors in their answers."""

    def __init__(self, api_keys: Iterable[int]) -> None:
        self.durations: Mapping[int, Histogram] = {key: Histogram() for key in api_keys}
        self.errors: Counter[tuple[int, int]] = Counter()
        """(API key, error code) -> number of answers."""

    def answered(self, api_key: int, body: Any, duration_ns: int) -> None:
        """Count an answer: its time, and each error code in it but NONE."""
        self.durations[api_key].observe(duration_ns)
        if type(body) is ProduceResponse:  # Fetch and other frequent answers: plain loops
            for topic in body.responses:
                for partition in topic.partition_responses:
                    if partition.error_code:
                        self.errors[api_key, partition.error_code] += 1
            return
        if type(body) is EncodedResponse and not body.error_code and not body.topics.errors:
            return
        for code in error_codes(body):
            self.errors[api_key, code] += 1

    def counted(self, api_key: int, errors: Mapping[int, int], duration_ns: int) -> None:
        """Count an answer as `answered`, with error codes that are counted already."""
        self.durations[api_key].observe(duration_ns)
        for code, times in errors.items():
            self.errors[api_key, code] += times

    def refused(self, code: ErrorCode) -> None:
        """Count a frame that is no served request."""
        self.errors[NOT_DECODED, code.value] += 1


class BrokerMetrics:
    """The counters of one broker, beside those of its partitions."""

    def __init__(self, api_keys: Iterable[int]) -> None:
        self.requests = RequestMetrics(api_keys)
        self.connections_accepted = 0
        self.connections_refused = 0


def error_codes(body: Any) -> Iterator[int]:
    """Yield each error code in an answer except NONE, as often as it occurs."""
    if type(body) is EncodedResponse:
        if body.error_code:
            yield int(body.error_code)
        yield from body.topics.errors
        return
    kind: Any = type(body)
    for *path, field in _paths(kind):
        holders = [body]
        for name in path:
            holders = [inner for one in holders for inner in getattr(one, name) or ()]
        for one in holders:
            if code := getattr(one, field):
                yield int(code)


@cache
def _paths(body: Any) -> tuple[tuple[str, ...], ...]:
    """Return the paths from an answer to its error codes: names of sequences, outermost first, and the code's name."""
    return tuple(_search(body, ()))


def _search(kind: type, above: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    if not hasattr(kind, "__annotations__"):
        return
    for name, hint in get_type_hints(kind).items():
        if name in ("error_code", "partition_error_code"):  # the second one in AddPartitionsToTxn
            yield (*above, name)
        for inner in _classes_in(hint):
            yield from _search(inner, (*above, name))


def _classes_in(hint: Any) -> Iterable[type]:
    """Yield the item types of a sequence, which may be optional."""
    for inner in get_args(hint):
        if isinstance(inner, type) and hasattr(inner, "__annotations__") and inner is not ErrorCode:
            yield inner
        else:
            yield from _classes_in(inner)
