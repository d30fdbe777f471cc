"""What is usual for one key, and what is out of the ordinary: pure arithmetic, hour by hour.

In: a key's baseline so far and its next hour (how many requests, how many of them errors). Out: the baseline with that
hour in it, and the flags that the hour earns, judged by what was usual before it. Never here: Spark, clocks, input.

Usual is an exponentially weighted mean and variance of requests an hour, and a share of errors that fades alike. Hours
without requests count as zeros. The same hours in the same order give the same floats, however they were cut into
batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

PRIOR_REQUESTS = 10.0
PRIOR_ERRORS = 0.5
"""What is taken for granted of a key beside what was seen of it: of ten requests, half of one is an error."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What counts as out of the ordinary.

    `weight` (0 to 1) is what the newest hour counts; `hours_min` hours must be known before anything is flagged;
    `deviations` are standard deviations above the usual; a flag needs `requests_min` requests or `errors_min` errors
    in its hour, so that small numbers stay quiet; a key silent for `forget_hours` begins afresh.
    """

    weight: float = 0.1
    hours_min: int = 6
    deviations: float = 4.0
    requests_min: int = 10
    errors_min: int = 5
    forget_hours: int = 168


@dataclass(frozen=True, slots=True)
class Baseline:
    """A key after `hour` (hours since 1970), `hours` after its first: requests an hour as `mean` and `variance`,
    and all requests and errors so far, faded by the hour.
    """

    hour: int
    hours: int = 0
    mean: float = 0.0
    variance: float = 0.0
    requests: float = 0.0
    errors: float = 0.0

    def then(self, requests: int, errors: int, weight: float) -> "Baseline":
        """With one more hour in it. The first hour is taken as it is (West's incremental update from then on)."""
        off = requests - self.mean
        step = off * (weight if self.hours else 1.0)
        return Baseline(
            self.hour + 1,
            self.hours + 1,
            self.mean + step,
            (1 - weight) * (self.variance + off * step) if self.hours else 0.0,
            (1 - weight) * self.requests + requests,
            (1 - weight) * self.errors + errors,
        )


@dataclass(frozen=True, slots=True)
class Flag:
    """An hour out of the ordinary. `what` is `rate` or `errors`; `expected` is how many requests or errors would have
    been usual, `score` how many standard deviations more there were.
    """

    what: str
    expected: float
    score: float


def judge(baseline: Baseline, requests: int, errors: int, rule: Rule) -> Iterator[Flag]:
    """The flags of an hour against what was usual before it."""
    if baseline.hours < rule.hours_min:
        return
    # Counts scatter by at least the root of what is expected (Poisson), however steady they were so far.
    rate = (requests - baseline.mean) / sqrt(max(baseline.variance, baseline.mean, 1.0))
    if requests >= rule.requests_min and rate > rule.deviations:
        yield Flag("rate", baseline.mean, rate)
    share = (baseline.errors + PRIOR_ERRORS) / (baseline.requests + PRIOR_REQUESTS)
    expected = share * requests
    excess = (errors - expected) / sqrt(max(expected * (1 - share), 1.0))
    if errors >= rule.errors_min and excess > rule.deviations:
        yield Flag("errors", expected, excess)


def fold(
    baseline: Baseline | None, hour: int, requests: int, errors: int, rule: Rule
) -> tuple[Baseline, list[Flag]]:
    """A key's next hour with requests: `hour` must be later than those before it. Returns what is usual now, and the
    flags of this hour; the hours that were skipped are zeros.
    """
    if baseline is None or hour - baseline.hour > rule.forget_hours:
        return Baseline(hour - 1).then(requests, errors, rule.weight), []
    assert hour > baseline.hour, "an hour is folded once, in order"
    while baseline.hour < hour - 1:
        baseline = baseline.then(0, 0, rule.weight)
    flags = list(judge(baseline, requests, errors, rule))
    return baseline.then(requests, errors, rule.weight), flags
