"""Goal: ACLs mean on our broker what they mean on Apache Kafka, and Kafka's own tool manages them.

Method: one story runs against both, each with StandardAuthorizer and `allow.everyone.if.no.acl.found`. Every client is
User:ANONYMOUS, so each ACL of the story permits or denies something to the story itself. The traces must be equal.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.broker_process import broker_process
from tests.compat.apache_kafka import apache_kafka
from tests.compat.differential import (
    NO_ID,
    Broker,
    Connection,
    answers_are_equal,
    api_versions,
    in_common,
)
from tests.compat.differential_records import batch, fetch, produce
from tests.compat.differential_stories import topic
from tests.compat.tools import java_tool
from tests.integration.waiting import wait_for

ACL_COMMAND = "org.apache.kafka.tools.AclCommand"
SETTINGS = {
    "authorizer__class__name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow__everyone__if__no__acl__found": "true",
    "super__users": "User:root",
}
TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, PREFIXED = 3, 4
ALL, READ, WRITE, DELETE, DESCRIBE, ALTER_CONFIGS = 2, 3, 4, 6, 8, 11
DENY, ALLOW = 2, 3
ME, OTHER, ANY_CLIENT = "User:ANONYMOUS", "User:other", "User:*"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield our address and Kafka's."""
    with (
        apache_kafka(tmp_path_factory.mktemp("kafka"), **SETTINGS) as theirs,
        broker_process(tmp_path_factory.mktemp("ours"), tier__url="", **SETTINGS) as ours,
    ):
        yield ours.address, theirs


def acl(name: str, operation: int, principal: str = ME, **more: Any) -> dict[str, Any]:
    one = {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": principal,
        "host": "*",
        "operation": operation,
        "permission_type": ALLOW,
    }
    return {**one, **more}


def wanted(**more: Any) -> dict[str, Any]:
    one = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return {**one, **more}


def create(ask: Connection, *acls: dict[str, Any]) -> None:
    """Create ACLs, and wait until the broker shows those that it accepted."""
    results = ask.ask("CreateAcls", creations=list(acls)).results
    made = [one for one, result in zip(acls, results, strict=True) if not result.error_code]
    wait_until(ask, lambda shown: all(one in shown for one in made))


def delete(ask: Connection, **filtered: Any) -> None:
    """Delete ACLs, and wait until they are gone. Kafka does not promise their order in the answer."""
    ask.send("DeleteAcls", filters=[wanted(**filtered)])
    gone = []
    for result in ask.receive(traced=False).filter_results:
        ask.broker.add("DeleteAcls", result.error_code)
        for one in sorted(result.matching_acls, key=repr):
            ask.broker.add("deleted", one)
            gone.append(as_created(one, one))
    wait_until(ask, lambda shown: not any(one in shown for one in gone))


def as_created(resource: Any, one: Any) -> dict[str, Any]:
    """Return an answered ACL in the words of `acl`."""
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "resource_pattern_type": resource.pattern_type,
        "principal": one.principal,
        "host": one.host,
        "operation": one.operation,
        "permission_type": one.permission_type,
    }


def wait_until(ask: Connection, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Wait until the broker's ACLs fit: Kafka's controller answers before its broker has the change."""

    def fits() -> bool:
        ask.send("DescribeAcls", **wanted())
        resources = ask.receive(traced=False).resources
        return holds([as_created(resource, one) for resource in resources for one in resource.acls])

    wait_for(fits, f"a change of ACLs on {ask.broker.address}")


def describe(ask: Connection, **filtered: Any) -> None:
    """Describe ACLs, in an order of ours."""
    ask.send("DescribeAcls", **wanted(**filtered))
    answer = ask.receive(traced=False)
    ask.broker.add("DescribeAcls", answer.error_code)
    for resource in sorted(answer.resources, key=repr):
        ask.broker.add("resource", [resource.resource_type, resource.resource_name])
        for one in sorted(resource.acls, key=repr):
            ask.broker.add("acl", one)


def attempt(ask: Connection, name: str, topic_id: Any) -> None:
    """Write, read, describe and alter a topic; list what the client may do."""
    produce(ask, name, batch(b"x"), topic_id=topic_id)
    fetch(ask, name, topic_id, 0)
    ask.ask("Metadata", topics=[{"topic_id": topic_id, "name": None}])
    ask.ask("Metadata", topics=[{"topic_id": NO_ID, "name": ask.broker.name(name)}])
    resource = {"resource_type": TOPIC, "resource_name": ask.broker.name(name)}
    names = {**resource, "configuration_keys": ["retention.ms"]}
    ask.ask("DescribeConfigs", resources=[names])
    change = {"name": "retention.ms", "config_operation": 0, "value": "86400000"}
    ask.ask("IncrementalAlterConfigs", resources=[{**resource, "configs": [change]}])
    ask.ask(
        "ListOffsets",
        replica_id=-1,
        topics=[
            {
                "name": ask.broker.name(name),
                "partitions": [{"current_leader_epoch": -1, "timestamp": -2}],
            }
        ],
    )


def story(broker: Broker) -> None:
    """Try one topic under each set of ACLs, then refused and deleted ones."""
    ask = broker.connect()
    topic_id = topic(ask, "orders")
    name = broker.name("orders")
    sets = [
        [acl(name, READ)],
        [acl(name, WRITE, ANY_CLIENT)],
        [acl(name, DESCRIBE), acl(name, ALTER_CONFIGS)],
        [acl("*", ALL), acl(name, WRITE, permission_type=DENY)],
        [acl(name[:-2], ALL, resource_pattern_type=PREFIXED)],
        [
            acl(name[:-2], READ, resource_pattern_type=PREFIXED, permission_type=DENY),
            acl(name, ALL),
        ],
        [acl(name, ALL, OTHER)],
        [acl(name, ALL, host="10.1.2.3")],
        [acl(name, ALL, host="127.0.0.1"), acl("*", READ, ANY_CLIENT, permission_type=DENY)],
        [acl(name, DESCRIBE, permission_type=DENY), acl(name, READ), acl(name, DELETE)],
    ]
    for some in sets:
        create(ask, *some)
        describe(ask, resource_name_filter=name, pattern_type_filter=2)
        attempt(ask, "orders", topic_id)
        delete(ask)
    attempt(ask, "orders", topic_id)


def refusals(broker: Broker) -> None:
    """Create ACLs that cannot be, one with each unknown number, and use each kind of filter.

    Where a number means ANY, Kafka fails with UNKNOWN_SERVER_ERROR, and refuses every ACL of the request.
    """
    ask = broker.connect()
    name = broker.name("a")
    for field, wrong in (
        ("resource_type", 99),
        ("resource_pattern_type", 99),
        ("operation", 99),
        ("permission_type", 99),
        ("resource_name", ""),
        ("resource_type", CLUSTER),
    ):
        create(ask, acl(**{"name": name, "operation": READ, field: wrong}), acl(name, READ, OTHER))
    create(ask, acl(name, READ, OTHER), acl(name, READ, OTHER))
    create(ask, acl(name, WRITE, OTHER, host="1.2.3.4"), acl("*", READ, OTHER, resource_type=GROUP))
    for filtered in (
        {},
        {"resource_type_filter": GROUP},
        {"resource_name_filter": name},
        {"resource_name_filter": name, "pattern_type_filter": 2},
        {"resource_name_filter": "x", "pattern_type_filter": 2},
        {"principal_filter": OTHER, "operation": WRITE},
        {"host_filter": "1.2.3.4"},
        {"permission_type": DENY},
    ):
        describe(ask, **filtered)
    delete(ask, principal_filter="User:none")
    delete(ask, operation=WRITE)
    delete(ask)
    describe(ask)


@pytest.mark.serial
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tells", [story, refusals])
def test_acls_mean_what_they_mean_on_apache_kafka(both: tuple[str, str], tells: Any) -> None:
    common = in_common(*map(api_versions, both))
    answers_are_equal(both, tells, f"{tells.__name__}-", common, steps_min=30)


@pytest.mark.big
@pytest.mark.serial
@pytest.mark.timeout(300)
def test_kafkas_tool_adds_lists_and_removes_acls(both: tuple[str, str]) -> None:
    outputs = []
    for address in both:
        said = ""
        for words in (
            "--add --allow-principal User:alice --operation Read --topic book --group g",
            "--add --deny-principal User:bob --operation All --topic bo --resource-pattern-type prefixed",
            "--list --topic book --resource-pattern-type match",
            "--remove --allow-principal User:alice --operation Read --topic book --force",
            "--list",
        ):
            done = java_tool(ACL_COMMAND, "--bootstrap-server", address, *words.split())
            assert done.returncode == 0, done.stdout + done.stderr
            said += done.stdout
        outputs.append(sorted(line.strip() for line in said.splitlines() if line.strip()))
    assert outputs[0] == outputs[1]
    assert re.search("User:bob, host=\\*, operation=ALL, permissionType=DENY", str(outputs[0]))
