"""Goal: a client gets the same answers from our broker as from Apache Kafka.

Method: the same stories run against both brokers, in every version that both serve. The traces must be equal except for
the differences excused below, each with its reason. An excuse that no difference needs is a failure too.
"""

import re
from collections.abc import Iterator

import pytest
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.compat.differential import Broker, Versions, api_versions, differences, in_common
from tests.compat.differential_groups import GROUP_STORIES
from tests.compat.differential_records import RECORD_STORIES
from tests.compat.differential_rules import RULE_STORIES
from tests.compat.differential_stories import STORIES, Story
from tests.compat.differential_transactions import TRANSACTION_STORIES
from tests.compat.differential_twice import TWICE_STORIES

SETTINGS = {
    "group__min__session__timeout__ms": "100",
    "num__partitions": "4",
    "transaction__abort__timed__out__transaction__cleanup__interval__ms": "100",
    "transaction__state__log__num__partitions": "4",
}
EVERY_STORY = (
    *RULE_STORIES,
    *STORIES,
    *RECORD_STORIES,
    *GROUP_STORIES,
    *TRANSACTION_STORIES,
    *TWICE_STORIES,
)
# Subtracted from the newest versions: Metadata has the longest range of common versions.
EVERY_DEPTH = range(14)

# Place of an allowed difference -> its reason.
EXCUSED = {
    r".*\.configs\.tier\.(max\.lag\.ms|key\.filter)": "a setting of ours",
    r"settings_are_changed#12 .*error_code": "Kafka fails with UNKNOWN_SERVER_ERROR where an operation does not exist",
    r"settings_are_changed#14 .*": "Kafka answers a resource that is named twice twice",
    r".*_named_twice#.* (DescribeConfigs|DescribeGroups|DescribeProducers|OffsetFetch)\..*": "an answer is no copies",
    r"the_cluster_is_described#6 DescribeQuorum\.nodes\[0\].*": "Kafka sends no addresses beside an error",
    r"producers_are_idempotent#2[34] .*": "a producer id without epoch or sequence: refused before the log is asked",
    r"producers_are_idempotent#26 .*(high_watermark|last_stable_offset|records\[14\].*)": "the same: Kafka took one",
    r"producers_are_idempotent#27 .*offset": "the same",
    # Decision 0009: the broker refuses records that stop a consumer, with a code that blames the producer.
    r".*(a length that does not end|no such bytes)/.*": "Kafka fails with UNKNOWN_SERVER_ERROR",
    r".*(a wrong|a negative) offset delta/.*": "Kafka takes it, or fails where it is compressed",
    r".*attributes like a long number/.*": "Kafka takes it",
    r".*less than null/.*": "Kafka takes it for null",
    r".*a header's key that is no text/.*": "Kafka takes it",
    r".*(negative length|length at all|past the end|before the record's end)/(gzip|lz4|zstd).*": "Kafka takes these",
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Versions]]:
    """Yield our address, Kafka's, and the common versions."""
    settings = {**SETTINGS, "tier__url": "", "log__retention__check__interval__ms": "300000"}
    with (
        apache_kafka(tmp_path_factory.mktemp("kafka"), **SETTINGS) as theirs,
        broker_process(tmp_path_factory.mktemp("ours"), **settings) as ours,
    ):
        common = in_common(api_versions(ours.address), api_versions(theirs))
        yield ours.address, theirs, common


def parted(both: tuple[str, str, Versions], story: Story, depth: int) -> list[str]:
    """Return where the two traces of one story differ, each place once."""
    *addresses, common = both
    traces = []
    for address in addresses:
        broker = Broker(address, f"pass{depth}-", common, depth)
        try:
            story(broker)
        finally:
            broker.close()
        traces.append(broker.trace)
    ours, theirs = traces
    found = []
    for step, ((label, one), (_, other)) in enumerate(zip(ours, theirs, strict=True)):
        for path, mine, kafkas in differences(one, other):
            found.append(
                f"{story.__name__}#{step} {label}{path}: ours {mine!r}, Kafka's {kafkas!r}"
            )
    return found


def judged(found: list[str]) -> tuple[list[str], set[str]]:
    """Return the differences without an excuse, and the used excuses."""
    used = set()
    left = []
    for one in found:
        excuses = {pattern for pattern in EXCUSED if re.fullmatch(pattern, one.split(": ours ")[0])}
        used |= excuses
        if not excuses:
            left.append(one)
    return left, used


@pytest.mark.serial
@pytest.mark.timeout(300)
def test_the_newest_versions_answer_as_kafka_does(both: tuple[str, str, Versions]) -> None:
    found = [one for story in EVERY_STORY for one in parted(both, story, 0)]
    left, used = judged(found)
    assert "\n".join(left) == ""
    assert used == set(EXCUSED), "no difference needs this excuse any more"


@pytest.mark.big
@pytest.mark.serial
@pytest.mark.timeout(600)
@pytest.mark.parametrize("depth", EVERY_DEPTH[1:])
def test_older_versions_answer_as_kafka_does(both: tuple[str, str, Versions], depth: int) -> None:
    found = [one for story in EVERY_STORY for one in parted(both, story, depth)]
    left, _ = judged(found)
    assert "\n".join(left) == ""


def test_a_difference_is_reported() -> None:
    found = list(differences({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3, "c": 4}], "d": 5}))
    assert found == [(".a[1].b", 2, 3), (".a[1].c", None, 4), (".d", None, 5)]
    left, used = judged(
        [
            "x#0 Produce.configs.tier.max.lag.ms: ours 1, Kafka's 2",
            "x#0 Produce.y: ours 1, Kafka's 2",
        ]
    )
    assert left == ["x#0 Produce.y: ours 1, Kafka's 2"]
    assert used == {r".*\.configs\.tier\.(max\.lag\.ms|key\.filter)"}
