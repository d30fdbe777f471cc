"""A quota of bytes a second over a window: the bytes that pass at once, and the wait of the others."""

from stratalog.quota import ByteQuota


def test_the_bytes_of_a_window_pass_at_once_and_then_the_rate_counts():
    quota = ByteQuota(1000, samples=3, sample_ms=1000, now_ms=0)
    quota.spent(2999)
    assert quota.wait_ms(0) == 0
    quota.spent(501)  # a started copy is not interrupted: it exceeds the quota by half a second
    assert quota.wait_ms(0) == 501
    assert quota.wait_ms(400) == 101
    assert quota.wait_ms(501) == 0


def test_after_a_pause_at_most_one_window_passes_at_once():
    quota = ByteQuota(1000, samples=3, sample_ms=1000, now_ms=0)
    assert quota.wait_ms(1_000_000) == 0
    quota.spent(4000)
    assert quota.wait_ms(1_000_000) == 1001


def test_a_clock_that_goes_back_frees_no_quota():
    quota = ByteQuota(1000, samples=1, sample_ms=1000, now_ms=5000)
    quota.spent(2000)
    assert quota.wait_ms(0) == 1001
    assert quota.wait_ms(500) == 501
