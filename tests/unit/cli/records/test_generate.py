"""`strata produce --generate`: its options, and the lines that arrive."""

import asyncio
import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from stratalog import read
from stratalog.cli.records.generate import FEWEST_AHEAD_MS, Generated, generate, plan_of
from stratalog.cli.records.order import Order
from stratalog.errors import UserError
from stratalog.testing import TemporaryBroker

COUNT = 300


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((None, None, 5, None, 1), "are for --generate"),
        (("weather", None, 5, None, 1), "accepted: access-log"),
        (("access-log", Path("x"), 5, None, 1), "one source too many"),
        (("access-log", None, None, None, 1), "needs --count, --rate or both"),
    ],
)
def test_contradicting_options_are_refused(
    asked: tuple[str | None, Path | None, int | None, float | None, int], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        plan_of(*asked)


@pytest.mark.parametrize("rate", [None, 2000.0])
def test_each_visitors_lines_arrive_in_one_partition_in_order(rate: float | None) -> None:
    with TemporaryBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("visits", 4, 1)])["visits"].result(30)
        order = Order("visits", None, "zstd", -1, None, None, None)
        sent = asyncio.run(generate(broker.address, order, Generated(COUNT, rate, 3)))
        assert sent == COUNT
        rows = read("visits", bootstrap_servers=broker.address).read_all().to_pylist()
    assert len(rows) == COUNT
    assert all(row["value"].startswith(row["key"] + b" - - [") for row in rows)
    homes = {(row["key"], row["partition"]) for row in rows}
    assert len(homes) == len({row["key"] for row in rows}), (
        "a visitor's lines are in several partitions"
    )
    for partition in range(4):
        times = [row["timestamp"] for row in rows if row["partition"] == partition]
        assert times == sorted(times)


def test_at_a_rate_no_line_is_sent_before_its_time() -> None:
    """Compare the broker's clock with the lines' times: two seconds of log take two seconds to arrive."""
    with TemporaryBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.address})
        appended = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topics([NewTopic("visits", 1, 1, config=appended)])["visits"].result(30)
        order = Order("visits", None, "none", -1, None, None, None)
        assert asyncio.run(generate(broker.address, order, Generated(500, 250.0, 3))) == 500
        rows = read("visits", bootstrap_servers=broker.address).read_all().to_pylist()
    happened = [
        datetime.strptime(
            re.findall(r"\[(.*?)\]", row["value"].decode())[0], "%d/%b/%Y:%H:%M:%S %z"
        )
        for row in rows
    ]
    assert timedelta(seconds=1) <= happened[-1] - happened[0] <= timedelta(seconds=3)
    ahead = timedelta(milliseconds=FEWEST_AHEAD_MS)
    for row, time in zip(rows, happened, strict=True):
        assert row["timestamp"] >= time - ahead
