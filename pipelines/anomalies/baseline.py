"""Compute a key's baseline, and flags for unusual hours: pure arithmetic, hour by hour.

In: a key's baseline so far and its next hour (the numbers of requests and errors). Out: the baseline including that
hour, and the hour's flags relative to the earlier baseline. Never here: Spark, clocks, input.

The baseline is an exponentially weighted mean and variance of requests an hour, and a share of errors that fades alike.
Hours without requests count as zeros. The same hours in the same order give the same floats, however they were cut into
batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

PRIOR_REQUESTS = 10.0
PRIOR_ERRORS = 0.5
"""Prior counts of each key, added to the observed ones: ten requests, half of one an error."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The limits for flags.

    `weight` (0 to 1) is the weight of the newest hour; a key needs `hours_min` hours before its first flag;
    `deviations` are standard deviations above the usual; a flag needs `requests_min` requests or `errors_min` errors in
    its hour, so that small numbers stay quiet; a key silent for `forget_hours` begins afresh.
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
        """Return the baseline with one more hour. The first hour is the first mean; later ones follow West's
        incremental update.
        """
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
    """An hour out of the ordinary. `what` is `rate` or `errors`; `expected` is the usual number of requests or errors,
    `score` the excess in standard deviations.
    """

    what: str
    expected: float
    score: float


def judge(baseline: Baseline, requests: int, errors: int, rule: Rule) -> Iterator[Flag]:
    """Yield the flags of an hour relative to the earlier baseline."""
    if baseline.hours < rule.hours_min:
        return
    # Counts scatter by at least the root of the expected number (Poisson), however steady they were so far.
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
    """Add a key's next hour with requests; `hour` must be later than the earlier ones. Return the new baseline, and the
    flags of this hour; skipped hours count as zeros.
    """
    if baseline is None or hour - baseline.hour > rule.forget_hours:
        return Baseline(hour - 1).then(requests, errors, rule.weight), []
    assert hour > baseline.hour, "an hour is folded once, in order"
    while baseline.hour < hour - 1:
        baseline = baseline.then(0, 0, rule.weight)
    flags = list(judge(baseline, requests, errors, rule))
    return baseline.then(requests, errors, rule.weight), flags
