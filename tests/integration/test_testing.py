"""The pytest plugin: its documented examples and its promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from stratalog.errors import UserError
from stratalog.testing import TemporaryBroker

DAY_MS = 24 * 3600 * 1000


def test_the_documented_examples_run(repository: Path, tmp_path: Path) -> None:
    # One file for each example, two at a time, in a directory without this checkout's settings.
    examples = re.findall(
        r"```python\n(.*?)```", (repository / "docs/testing.md").read_text(), re.DOTALL
    )
    names = []
    for number, text in enumerate(examples):
        (tmp_path / f"test_example_{number}.py").write_text(text)
        names += re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-rA", "--timeout", "60"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert [name for name in names if f"::{name}" not in done.stdout] == []


@pytest.fixture(scope="module")
def one() -> TemporaryBroker:
    with TemporaryBroker() as started:
        yield started


def produce(
    broker: TemporaryBroker, topic: str, *values: bytes, **settings: object
) -> list[object]:
    """Produce each value; return the error of each delivery, None for an acknowledged one."""
    errors: list[object] = []
    producer = Producer({"bootstrap.servers": broker.address, **settings})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(20)
    return errors


def ends(broker: TemporaryBroker, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "ends"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    finally:
        consumer.close()


def test_two_brokers_are_independent(one: TemporaryBroker) -> None:
    with TemporaryBroker() as other:
        assert other.address != one.address
        other.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
        assert produce(one, "mine", b"x") == [None]
        assert "mine" not in AdminClient({"bootstrap.servers": other.address}).list_topics().topics


def test_reset_removes_all_state_except_the_address(one: TemporaryBroker) -> None:
    produce(one, "before", b"x")
    one.fail("Produce", "TOPIC_AUTHORIZATION_FAILED")
    one.advance(1000)
    address = one.address
    one.reset()
    assert one.address == address
    assert AdminClient({"bootstrap.servers": address}).list_topics(timeout=20).topics == {}
    assert produce(one, "after", b"x") == [None]


def test_an_injected_failure_ends_after_its_count(one: TemporaryBroker) -> None:
    produce(one, "failing", b"0")
    one.fail("Produce", 29, times=1)  # no retry helps: TOPIC_AUTHORIZATION_FAILED
    (error,) = produce(one, "failing", b"1")
    assert error.code() == 29
    assert produce(one, "failing", b"2") == [None]
    assert ends(one, "failing") == (0, 2)


@pytest.mark.parametrize("api", ["CreateTopics", "FindCoordinator", "OffsetFetch"])
def test_any_api_can_be_refused(one: TemporaryBroker, api: str) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions as Group
    from confluent_kafka.admin import NewTopic

    admin = AdminClient({"bootstrap.servers": one.address})
    admin.list_topics(timeout=20)
    asked = {
        "CreateTopics": lambda: admin.create_topics([NewTopic("refused")]),
        "FindCoordinator": lambda: admin.list_consumer_group_offsets([Group("g")]),
        "OffsetFetch": lambda: admin.list_consumer_group_offsets([Group("g")]),
    }
    one.fail(api, "GROUP_AUTHORIZATION_FAILED", times=1)
    (future,) = asked[api]().values()
    with pytest.raises(KafkaException) as failed:
        future.result(20)
    assert failed.value.args[0].code() == 30
    one.reset()


def test_an_injected_failure_can_be_removed(one: TemporaryBroker) -> None:
    # librdkafka requests metadata by itself too: more failures than it can use up.
    admin = AdminClient({"bootstrap.servers": one.address})
    one.fail("Metadata", "CLUSTER_AUTHORIZATION_FAILED", times=10_000)
    with pytest.raises(KafkaException) as failed:
        admin.list_topics(timeout=20)
    assert failed.value.args[0].code() == 31
    one.fail("Metadata", 0, times=0)
    assert admin.list_topics(timeout=20).topics is not None


def test_a_misspelt_name_is_reported(
    one: TemporaryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="no API 'Produces'; there are: Produce, "):
        one.fail("Produces", 1)
    with pytest.raises(UserError, match="no error 'TIMEOUT'"):
        one.fail("Produce", "TIMEOUT")
    with pytest.raises(UserError, match="no error 9999"):
        one.fail("Produce", 9999)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UserError, match=r"num\.partitions"):
        TemporaryBroker({"num.partitions": "many"}).start()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="cannot listen"):
        TemporaryBroker({"listeners": f"PLAINTEXT://{one.address}"}).start()
    assert list(tmp_path.iterdir()) == []


def test_a_misspelt_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"^unknown setting num\.partition; did you mean num\.partitions\?$"
    ):
        TemporaryBroker({"num.partition": "3"}, directory=tmp_path / "data").start()
    with pytest.raises(UserError, match=r"^unknown setting nothing\.like\.it$"):
        TemporaryBroker({"nothing.like.it": "3"}, directory=tmp_path / "data").start()
    with TemporaryBroker({"num.io.threads": 8}):
        pass  # a setting of Kafka's that has no effect here


def test_a_value_is_text_a_number_or_a_flag() -> None:
    settings = {"num.partitions": 3, "auto.create.topics.enable": True}
    with TemporaryBroker(settings) as broker:
        assert produce(broker, "made", b"x") == [None]
        topics = AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=20).topics
        assert len(topics["made"].partitions) == 3
    with pytest.raises(UserError, match=r"num\.partitions: None is not accepted; accepted: text"):
        TemporaryBroker({"num.partitions": None})  # type: ignore[dict-item]


USER_TEST = """
from stratalog.testing import TemporaryBroker

def test_orders(broker: TemporaryBroker) -> None:
    reveal_type(broker.address)
    broker.fail("Produce", "NOT_ENOUGH_REPLICAS", tims=2)
"""


def test_a_type_checker_sees_the_types_of_a_users_test(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(USER_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "test_user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert 'Revealed type is "str"' in done.stdout
    assert "did you mean" in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


def test_the_wheel_says_that_it_has_types(repository: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    files = WheelBuilder(str(repository)).recurse_included_files()
    assert "stratalog/py.typed" in [file.distribution_path for file in files]


SESSION_TESTS = """
import pytest

@pytest.fixture(scope="session")
def session_broker_settings():
    return {"num.partitions": 2}

@pytest.mark.parametrize("number", [1, 2])
def test_one(session_broker, number):
    print("address", session_broker.address, session_broker.is_running)
"""


def test_a_session_has_one_broker(tmp_path: Path) -> None:
    (tmp_path / "test_session.py").write_text(SESSION_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    addresses = re.findall(r"address (\S+) True", done.stdout)
    assert len(addresses) == 2
    assert len(set(addresses)) == 1


def test_kill_leaves_no_clean_shutdown_and_restart_recovers(one: TemporaryBroker) -> None:
    produce(one, "killed", *[b"%d" % number for number in range(100)])
    one.kill()
    assert not one.is_running
    assert not (one.directory / ".kafka_cleanshutdown").exists()
    one.restart()
    assert ends(one, "killed") == (0, 100)
    one.stop()
    assert (one.directory / ".kafka_cleanshutdown").exists()
    one.start()
    assert ends(one, "killed") == (0, 100)


def test_advance_makes_elapsed_time_pass_at_once() -> None:
    settings = {"log.segment.delete.delay.ms": "60000"}
    with TemporaryBroker(settings) as broker:
        assert produce(broker, "waits", b"x") == [None]

        def deleted() -> list[Path]:
            return list((broker.directory / "waits-0").glob("*.deleted"))

        broker.advance(8 * DAY_MS)
        assert ends(broker, "waits") == (1, 1)
        assert deleted(), "the files must stay for a minute, for readers"
        broker.advance(61_000)
        assert not deleted()


def test_members_stay_in_while_the_clock_is_advanced(one: TemporaryBroker) -> None:
    assert produce(one, "watched", b"x") == [None]
    settings = {"group.id": "stays", "auto.offset.reset": "earliest", "session.timeout.ms": 10_000}
    lost: list[object] = []
    consumer = Consumer({"bootstrap.servers": one.address, **settings})
    try:
        consumer.subscribe(["watched"], on_lost=lambda *_: lost.append(1))
        message = consumer.poll(20)
        assert message is not None
        one.advance(DAY_MS)
        consumer.commit(message, asynchronous=False)  # the commit succeeds only for a member
        assert produce(one, "watched", b"y") == [None]
        after = consumer.poll(20)
        assert after is not None
        assert (after.value(), lost) == (b"y", [])
    finally:
        consumer.close()


def test_a_stopped_broker_removes_its_directory(one: TemporaryBroker) -> None:
    with TemporaryBroker() as other:
        place = other.directory
        produce(other, "t", b"x")
    assert not place.exists()
