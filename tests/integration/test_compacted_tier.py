"""kill -9 of a real broker while it cleans a compacted topic on its disk and in its bucket.

Method: an acknowledged writer of few keys, with values and tombstones, rolls small segments, which go to a bucket; the
cleaners of both places run all the time. In some rounds the topic's policy is `delete` meanwhile. The broker is killed
at random moments, or once a cleaner has begun to write files or objects, and starts again. Each time a consumer reads
from offset 0 across the seam, and finds the last acknowledged value of each key. At the end `stratalog.read` and
Spark's `latest_by_key` find the same, over the cleaned bucket and the broker, and a sweep removes all that killed
cleaners left. `KILLS=50` sets how often (fewer here than by command), and `SEED=6` chooses other moments.
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.compacted_table import (
    SETTINGS,
    TOPIC,
    Writer,
    check_bucket,
    consumed,
    create,
    policies,
    set_policy,
    spark_table_of,
    table_of,
    until_cleaned,
)

KILLS = int(os.environ.get("KILLS", "2"))
SEED = int(os.environ.get("SEED", "5"))
CLEANING_WITHIN_S = 20.0

pytestmark = pytest.mark.timeout(300 + 90 * KILLS)


def cleaning_of_disk(broker: BrokerProcess) -> Callable[[], bool]:
    """Return a function that says whether a cleaner writes a segment of the disk."""
    folder = broker.data / f"{TOPIC}-0"
    return lambda: any(folder.glob("*.cleaned"))


def cleaning_of_bucket(url: str) -> Callable[[], bool]:
    """Return a function that says whether a directory has another object of offsets that it had: of a cleaner's."""
    folder = Path(url.removeprefix("file://"))

    def objects() -> set[str]:
        return {one.name for one in folder.rglob("*.seg")}

    before = objects()
    end = max((int(name[21:41]) for name in before), default=-1)
    return lambda: any(int(name[:20]) <= end for name in objects() - before)


def last_values_survive(broker: BrokerProcess, url: str, kills: int) -> None:
    """Kill the started broker so often; `url` is that of its bucket."""
    writer, chance = Writer(), Random(SEED)
    policy = policies(chance)
    create(broker.address)
    for _ in range(kills):
        now = next(policy)
        set_policy(broker.address, now)
        kind = chance.choice(("any", "disk", "bucket")) if now == "compact" else "any"
        is_moment, seconds = (lambda: False), chance.uniform(1, 3)
        if kind == "disk":
            is_moment, seconds = cleaning_of_disk(broker), CLEANING_WITHIN_S
        elif kind == "bucket" and url.startswith("file:"):
            is_moment, seconds = cleaning_of_bucket(url), CLEANING_WITHIN_S
        writer.write(broker.address, seconds, broker.kill, is_moment)
        broker.start()
        writer.check(consumed(broker.address))
    set_policy(broker.address, "compact")
    until_cleaned(url, lambda: broker.log_text)
    found = consumed(broker.address)
    writer.check(found)
    kept = {key: value for key, value in found.items() if value is not None}
    assert table_of(bootstrap_servers=broker.address, tier_url=url) == kept
    assert spark_table_of(kafka_bootstrap_servers=broker.address, tier_url=url) == kept
    assert spark_table_of(kafka_bootstrap_servers=broker.address) == kept
    broker.stop()
    check_bucket(url)


def test_the_last_values_survive_kills_during_cleanings(tmp_path: Path) -> None:
    settings = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    with broker_process(tmp_path, **settings) as broker:
        last_values_survive(broker, broker.bucket_url, KILLS)
