"""Goal: settings of client-metrics resources are read and refused as by Apache Kafka 4.3, with its error codes."""

import pytest

from stratalog.config import describe_client_metrics, parse_subscription
from stratalog.errors import ErrorCode, Rejected

CLIENT = {
    "client_instance_id": "Id",
    "client_id": "app-1",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "client_source_address": "10.0.0.7",
    "client_source_port": "4711",
}


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"nothing": "1"}, "invalid_request"),
        ({"interval.ms": "99"}, "invalid_request"),
        ({"interval.ms": "3600001"}, "invalid_request"),
        ({"interval.ms": "-2147483648"}, "invalid_request"),
        ({"interval.ms": "2147483648"}, "invalid_config"),
        ({"interval.ms": "x"}, "invalid_config"),
        ({"interval.ms": ""}, "invalid_config"),
        ({"interval.ms": "9" * 5000}, "invalid_config"),
        ({"metrics": "a,"}, "invalid_config"),
        ({"metrics": ","}, "invalid_config"),
        ({"match": "client_id"}, "invalid_config"),
        ({"match": "client_id="}, "invalid_config"),
        ({"match": "="}, "invalid_config"),
        ({"match": "=x"}, "invalid_config"),
        ({"match": "client_id=a=b"}, "invalid_config"),
        ({"match": "host=a"}, "invalid_config"),
        ({"match": "client_id=("}, "invalid_config"),
        ({"match": "client_id=a{1,2}"}, "invalid_config"),
        ({"match": "client_id=" + "(" * 5000}, "invalid_config"),
        ({"match": "client_id=a{99999999999}"}, "invalid_config"),
    ],
)
def test_refused_settings_have_kafkas_code(values: dict[str, str], code: str) -> None:
    with pytest.raises(Rejected) as refused:
        parse_subscription("s", values)
    assert refused.value.code is ErrorCode[code]
    assert next(iter(values)) in refused.value.message


def test_a_resource_needs_a_name() -> None:
    with pytest.raises(Rejected) as refused:
        parse_subscription("", {})
    assert refused.value.code is ErrorCode.invalid_request


def test_values_are_trimmed_and_the_defaults_are_kafkas() -> None:
    found = parse_subscription("s", {"metrics": " a , b,a ", "interval.ms": " +500 "})
    assert (found.metrics, found.interval_ms) == ({"a", "b"}, 500)
    default = parse_subscription("s", {"metrics": " "})
    assert (default.metrics, default.interval_ms, default.match) == (set(), 300_000, {})


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("", True),
        ("client_id=app-.*", True),
        ("client_id=app", False),  # the whole text must match
        ("client_id = app-1 ", True),
        ("client_id=app-1=", True),  # as Java splits it
        ("client_id=x,client_id=app-1", True),  # the last of a name counts
        ("client_id=app-1,client_source_address=11\\..*", False),
        (",".join(f"{name}={value}" for name, value in CLIENT.items()), True),
    ],
)
def test_every_pattern_must_match_the_whole_attribute(match: str, matches: bool) -> None:
    assert parse_subscription("s", {"match": match}).matches(CLIENT) is matches


def test_a_client_without_the_attribute_does_not_match() -> None:
    some = parse_subscription("s", {"match": "client_software_name=.*"})
    assert not some.matches({**CLIENT, "client_software_name": None})


def test_descriptions_name_the_source() -> None:
    found = describe_client_metrics({"interval.ms": " 500 ", "metrics": ""})
    assert [(one.name, one.value, one.source, len(one.synonyms)) for one in found] == [
        ("interval.ms", "500", 7, 1),
        ("match", "", 5, 0),
        ("metrics", "", 7, 1),
    ]
