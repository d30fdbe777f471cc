"""Quotas over a window: what passes at once, and how long the rest waits."""

from stratalog.quota import ByteQuota, SampledRate, TokenBucket


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


def test_a_rate_over_its_bound_waits_until_the_window_has_grown_enough():
    # Kafka: QuotaUtils.throttleTime. 103,000 in a window of 10 s are 10,300 a second: 300 ms more make them 10,000.
    rate = SampledRate(11, 1000)
    rate.record(103_000, 0)
    assert rate.wait_ms(10_000, 0) == 300
    assert rate.wait_ms(10_000, 100) == 200
    assert rate.wait_ms(10_000, 300) == 0
    assert rate.wait_ms(10_300, 0) == 0


def test_a_rate_grows_with_its_samples_and_forgets_the_oldest():
    rate = SampledRate(3, 1000)
    for now_ms in (0, 1000, 2000, 2900):
        rate.record(1000, now_ms)
    assert rate.wait_ms(1300, 2900) == 177  # 4,000 in 2,900 ms
    assert rate.wait_ms(1300, 3000) == 308  # the oldest is over: 3,000 in 2,000 ms
    rate.record(-1000, 3000)
    assert rate.wait_ms(1000, 3000) == 0
    assert rate.wait_ms(1, 6000) == 0
    assert rate.is_over(6000)


def test_a_long_pause_begins_a_new_window():
    rate = SampledRate(3, 1000)
    rate.record(10_000, 0)
    rate.record(2500, 60_000)
    assert rate.wait_ms(1000, 60_000) == 500


def test_a_bucket_gives_a_windows_tokens_at_once_may_be_overdrawn_and_refills():
    # The example of Kafka's TokenBucket: a burst of 560 of 500 tokens at 5 a second leaves 60 to wait for, 12 s.
    bucket = TokenBucket(100)
    assert bucket.wait_ms(5, 1_000) == 0
    bucket.take(560, 5, 1_000)
    assert bucket.wait_ms(5, 1_000) == 12_000
    assert bucket.wait_ms(5, 7_000) == 6_000
    assert not bucket.is_over(7_000)
    assert bucket.wait_ms(5, 13_000) == 0
    assert not bucket.is_over(13_000)
    assert bucket.is_over(120_000)
    bucket.take(500, 5, 1_000_000)
    assert bucket.wait_ms(5, 1_000_000) == 0
