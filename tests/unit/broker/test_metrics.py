"""Goal: the metrics count each answer in the right bucket."""

from stratalog.broker.apis import APIS
from stratalog.broker.metrics import BOUNDS_NS, Histogram, PartitionMetrics, RequestMetrics
from stratalog.errors import ErrorCode
from stratalog.wire.fetch import EncodedResponse, encode_topics
from stratalog.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from stratalog.wire.messages.heartbeat import HeartbeatResponse
from stratalog.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)

PRODUCE, FETCH, HEARTBEAT, OFFSET_FETCH = 0, 1, 12, 9


def test_a_duration_falls_into_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for duration_ns in (0, BOUNDS_NS[0], BOUNDS_NS[0] + 1, BOUNDS_NS[-1], BOUNDS_NS[-1] + 1):
        histogram.observe(duration_ns)
    assert histogram.counts[:2] == [2, 1]
    assert histogram.counts[-2:] == [1, 1]
    assert sum(histogram.counts) == 5
    assert histogram.sum_ns == 2 * BOUNDS_NS[0] + 2 * BOUNDS_NS[-1] + 2


def test_bucket_bounds_increase() -> None:
    assert sorted(set(BOUNDS_NS)) == BOUNDS_NS


def test_errors_are_counted_at_every_level_of_an_answer() -> None:
    metrics = RequestMetrics(APIS)
    full, fenced = ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower
    rows = [
        PartitionProduceResponse(index=n, error_code=code, base_offset=-1)
        for n, code in enumerate((full, 0))
    ]
    produced = [TopicProduceResponse(name="t", partition_responses=rows)]
    metrics.answered(PRODUCE, ProduceResponse(responses=produced), 1)
    fetched = [
        PartitionData(
            partition_index=n,
            error_code=fenced,
            high_watermark=-1,
            aborted_transactions=None,
            records=(),
        )
        for n in range(2)
    ]
    topics = [FetchableTopicResponse(topic="t", partitions=fetched)]
    metrics.answered(FETCH, FetchResponse(responses=topics), 1)
    lost = ErrorCode.fetch_session_id_not_found
    metrics.answered(FETCH, EncodedResponse(lost, 0, encode_topics(topics, 12)), 1)
    unknown = ErrorCode.unknown_member_id
    metrics.answered(HEARTBEAT, HeartbeatResponse(error_code=unknown), 1)
    metrics.answered(HEARTBEAT, HeartbeatResponse(error_code=0), 1)
    assert metrics.errors == {
        (PRODUCE, full): 1,
        (FETCH, fenced): 4,
        (FETCH, lost): 1,
        (HEARTBEAT, unknown): 1,
    }
    assert sum(metrics.durations[HEARTBEAT].counts) == 2


def test_a_request_without_an_answer_is_counted() -> None:
    metrics = RequestMetrics(APIS)
    metrics.answered(PRODUCE, None, 1)
    assert sum(metrics.durations[PRODUCE].counts) == 1
    assert not metrics.errors


def test_damaged_reads_are_reported_at_the_first_and_at_large_powers_of_ten():
    metrics = PartitionMetrics()
    counts = [metrics.unreadable("here") for _ in range(100_001)]
    assert [count for count, is_news in counts if is_news] == [1, 10_000, 100_000]
    assert metrics.unreadable("there") == (1, True)
    assert metrics.unreadable_reads == 100_002


def test_at_most_a_thousand_causes_are_counted_apart():
    metrics = PartitionMetrics()
    news = [metrics.unreadable(cause)[1] for cause in range(3000)]
    assert sum(news) == 1001
    assert metrics.unreadable_reads == 3000
