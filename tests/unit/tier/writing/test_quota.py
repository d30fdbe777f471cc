"""Bytes a second over a window: what passes at once, what waits, and for how long."""

from stratalog.tier.writing.quota import ByteQuota


def test_a_window_s_worth_passes_at_once_and_then_the_rate_counts():
    quota = ByteQuota(1000, samples=3, sample_ms=1000, now_ms=0)
    quota.spent(2999)
    assert quota.wait_ms(0) == 0
    quota.spent(501)  # what began is not cut short: half a second too much
    assert quota.wait_ms(0) == 501
    assert quota.wait_ms(400) == 101
    assert quota.wait_ms(501) == 0


def test_a_pause_makes_room_for_no_more_than_the_window():
    quota = ByteQuota(1000, samples=3, sample_ms=1000, now_ms=0)
    assert quota.wait_ms(1_000_000) == 0
    quota.spent(4000)
    assert quota.wait_ms(1_000_000) == 1001


def test_a_clock_that_goes_back_gives_nothing():
    quota = ByteQuota(1000, samples=1, sample_ms=1000, now_ms=5000)
    quota.spent(2000)
    assert quota.wait_ms(0) == 1001
    assert quota.wait_ms(500) == 501
