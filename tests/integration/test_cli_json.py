"""Keys in the JSON of every command are in snake_case; names of settings, topics and features are data, and stay."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.integration.server_process import Server, strata
from tests.integration.waiting import wait_for
from tests.unit.cli.test_help import COMMANDS

SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
DATA = {"configs", "features"}
"""Objects whose keys are names of the user's or of Kafka's."""
BUCKET, LOG, PLACE = "BUCKET", "LOG", "PLACE"
ASKED = (
    "acl check User:a read --topic t",
    "acl list",
    "broker list",
    "check",
    "cluster info",
    "config describe --topic t --all",
    "consume t --from beginning --until-end",
    "group describe g",
    "group list",
    "group reset-offsets g --topic t --to end --dry-run",
    "log dirs",
    "log dirs --topic t",
    "partition elect t",
    "partition list",
    "partition reassign t --brokers 1 --dry-run",
    "perf consume t",
    "perf produce t --num-records 10",
    "produce t /dev/null",
    "quorum describe",
    "quota list",
    "topic create other",
    "topic describe t",
    "topic list",
    "topic trim t --before 1 --dry-run",
    "txn describe one",
    "txn find-hanging",
    "txn list",
    "user list",
)
NOT_ASKED = (
    f"log dump {LOG}",
    f"log verify {LOG}",
    f"metrics dashboards {PLACE}/boards",
    "plan --ingress 1MB/s",
    f"storage info --override log.dirs={PLACE}/data",
    f"tier check file://{PLACE}/empty",
    f"tier describe {BUCKET}",
    f"tier export {BUCKET} t {PLACE}/export",
    f"tier leases {BUCKET}",
    f"tier list {BUCKET}",
    f"tier sweep {BUCKET}",
    f"tier verify {BUCKET}",
    f"restore {BUCKET}",
    f"get t --tier-url {BUCKET} --tier-only --partition 0 --offset 0",
)
"""Commands that ask no broker."""
ELSEWHERE = {
    "bench machine": "it measures for a minute; its keys are names of fields",
    "broker drain": "the rows of partition reassign",
    "cluster start": "the rows of cluster status",
    "cluster status": "tests/integration/test_cli_cluster.py",
    "migrate inspect": "what and finding",
    "profile list": "tests/integration/test_cli_profile.py",
    "pipeline run": "tables",
    "storage repair": "file, byte, offset, reason, goes",
    "token create": "tests/integration/test_cli_token.py",
    "token list": "tests/integration/test_cli_token.py",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("json")
    settings = (
        f"tier.url={(place / 'bucket').as_uri()}",
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:ANONYMOUS",
        "monitor.listener=127.0.0.1:0",
        "offsets.topic.num.partitions=1",
        "transaction.state.log.num.partitions=1",
        "remote.log.manager.task.interval.ms=100",
    )
    with Server(place, settings) as started:
        at = ("-b", started.address)
        tiered = ("-c", "remote.storage.enable=true", "-c", "tier.max.lag.ms=100")
        assert strata("topic", "create", "t", *tiered, *at).returncode == 0
        producer = Producer({"bootstrap.servers": started.address, "transactional.id": "one"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("t", b"x", b"k", headers={"Some-Header": b"y"})
        producer.commit_transaction(30)
        acl = ("acl", "add", "--principal", "User:a", "--operation", "read", "--topic", "t")
        assert strata(*acl, *at).returncode == 0
        reset = ("--topic", "t", "--to", "beginning")
        assert strata("group", "reset-offsets", "g", *reset, *at).returncode == 0
        of_user = ("--user", "a", "--request-percentage", "5")
        assert strata("quota", "set", *of_user, *at).returncode == 0
        wait_for(lambda: list((place / "bucket").rglob("*.seg")), "a segment in the bucket")
        yield started


def printed(words: str, *more: str) -> list[Any]:
    done = strata(*words.split(), "--json", *more)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def wrong_keys(value: Any) -> set[str]:
    """Return the keys that are not in snake_case, at any depth."""
    match value:
        case list():
            return {key for one in value for key in wrong_keys(one)}
        case dict():
            wrong = {key for key in value if not SNAKE.fullmatch(key)}
            return wrong | {key for name in value.keys() - DATA for key in wrong_keys(value[name])}
        case _:
            return set()


@pytest.mark.parametrize("words", ASKED)
def test_keys_are_in_snake_case(server: Server, words: str) -> None:
    found = printed(words, "-b", server.address)
    assert found
    assert wrong_keys(found) == set()


@pytest.mark.parametrize("words", NOT_ASKED)
def test_keys_are_in_snake_case_without_a_broker(
    server: Server, words: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").symlink_to(server.place / "data")
    bucket = (server.place / "bucket").as_uri()
    log = next((server.place / "data" / "t-0").glob("*.log"))
    typed = words.replace(BUCKET, bucket).replace(LOG, str(log)).replace(PLACE, str(tmp_path))
    found = printed(typed)
    assert found
    assert wrong_keys(found) == set()


def test_each_command_with_json_is_here() -> None:
    known = {words for words, one in COMMANDS if any("--json" in each.opts for each in one.params)}
    here = {
        name
        for name in known
        for words in (*ASKED, *NOT_ASKED)
        if f"{words} ".startswith(f"{name} ")
    }
    assert here | ELSEWHERE.keys() == known
    assert here.isdisjoint(ELSEWHERE)
