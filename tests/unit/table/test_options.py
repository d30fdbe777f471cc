"""Options: they have Spark's names, and each mistake has one clear error."""

import pickle
from pathlib import Path

import pytest

from stratalog.client.calls import READ_COMMITTED, READ_UNCOMMITTED
from stratalog.errors import BadOption, UserError
from stratalog.kernels.columns import COLUMNS, HEADERS, ORIGIN
from stratalog.table.options import EARLIEST, LATEST, Bound, Options, Selection, parse_options
from stratalog.table.query import shared_of
from stratalog.table.secured import read_security

PLACE = {"kafka.bootstrap.servers": "a:1,b:2", "subscribe": "t"}


def parse(**changed: str) -> Options:
    return parse_options(PLACE | {name.replace("__", "."): text for name, text in changed.items()})


def test_options_have_defaults() -> None:
    found = parse_options(PLACE)
    assert found.bootstrap == "a:1,b:2"
    assert found.tier_url is None
    assert (found.selection, found.topics) == (Selection.SUBSCRIBE, ("t",))
    assert (found.starting, found.ending) == (None, None)
    assert found.fail_on_data_loss
    assert found.columns == COLUMNS
    assert found.max_offsets_per_trigger is None
    assert found.isolation == READ_UNCOMMITTED
    assert found.request_timeout_s == 30
    assert found.lease_ms == 60 * 60 * 1000


def test_names_are_case_insensitive() -> None:
    given = {"KAFKA.bootstrap.SERVERS": "a:1", "SUBSCRIBE": "t", "FailOnDataLoss": "FALSE"}
    assert not parse_options(given).fail_on_data_loss


def test_topics_are_selected_by_name_or_pattern() -> None:
    assert parse(subscribe=" a , b,a").topics == ("a", "b")
    found = parse_options({"tier.url": "file:///b", "assign": '{"t":[2,0],"s":[1]}'})
    assert found.topics == ("s", "t")
    assert found.assigned == {"t": (0, 2), "s": (1,)}
    found = parse_options({"tier.url": "s3://b/p", "subscribePattern": "a.*"})
    assert (found.selection, found.topics) == (Selection.PATTERN, ("a.*",))


def test_bounds_are_parsed() -> None:
    assert parse(startingOffsets="earliest").starting == Bound(everywhere=EARLIEST)
    assert parse(startingOffsets="LATEST").starting == Bound(everywhere=LATEST)
    found = parse(startingOffsets='{"t":{"0":23,"1":-2,"2":-1}}', endingOffsets="latest")
    assert found.starting == Bound(offsets={"t": {0: 23, 1: EARLIEST, 2: LATEST}})
    assert found.ending == Bound(everywhere=LATEST)
    assert parse(startingTimestamp="17").starting == Bound(timestamp=17)
    by_partition = {"startingOffsetsByTimestamp": '{"t":{"0":18}}', "startingOffsets": "latest"}
    assert parse(**by_partition).starting == Bound(timestamps={"t": {0: 18}})
    assert parse(**by_partition, startingTimestamp="17").starting == Bound(timestamp=17)


def test_other_options_are_parsed() -> None:
    found = parse(
        maxOffsetsPerTrigger="10",
        minPartitions="4",
        includeHeaders="true",
        includeOrigin="true",
        kafka__isolation__level="read_committed",
        kafka__request__timeout__ms="1500",
        startingOffsetsByTimestampStrategy="latest",
        tier__lease__ms="86400000",
    )
    assert found.lease_ms == 24 * 3600 * 1000
    assert (found.max_offsets_per_trigger, found.min_partitions) == (10, 4)
    assert found.columns == (*COLUMNS, HEADERS, ORIGIN)
    assert found.isolation == READ_COMMITTED
    assert found.request_timeout_s == 1.5
    assert not found.late_timestamp_is_error


def test_triggers_and_sizes_are_parsed() -> None:
    found = parse(minOffsetsPerTrigger="5", maxTriggerDelay="30s", maxRecordsPerPartition="9")
    assert (found.min_offsets_per_trigger, found.max_trigger_delay_s) == (5, 30)
    assert found.max_records_per_partition == 9
    assert parse().max_trigger_delay_s == 15 * 60
    assert parse(maxTriggerDelay="1500").max_trigger_delay_s == 1.5


def test_selected_columns_keep_their_order_without_repeats() -> None:
    assert parse(columns="Value, offset").columns == ("value", "offset")
    assert parse(columns="value,value", includeHeaders="true").columns == ("value", HEADERS)
    assert parse(columns="origin,headers", includeHeaders="true").columns == (ORIGIN, HEADERS)


def test_options_that_would_have_no_effect_are_refused_together() -> None:
    """They tune a Java consumer. A job that has them learns of all at once what to remove."""
    given = {"kafka.max.poll.records": "7", "GroupIdPrefix": "a", "kafka.group.id": "b"}
    says = (
        r"^options 'kafka\.max\.poll\.records', 'GroupIdPrefix', 'kafka\.group\.id' would have no effect: "
        "it tunes a Java consumer, and none runs here; remove them$"
    )
    with pytest.raises(BadOption, match=says):
        parse_options(PLACE | given)
    with pytest.raises(BadOption, match=r"'kafka.client.rack' would have no effect.*; remove it$"):
        parse_options(PLACE | {"kafka.client.rack": "r"})


@pytest.mark.parametrize(
    "name",
    ["fetchOffset.numRetries", "fetchoffset.retryintervalms", "kafkaConsumer.pollTimeoutMs"],
)
def test_an_option_of_retries_names_the_one_that_has_an_effect(name: str) -> None:
    with pytest.raises(BadOption, match=rf"(?i)'{name}': here 'kafka.default.api.timeout.ms'"):
        parse_options(PLACE | {name: "7"})


def test_calls_are_tried_again_as_long_as_a_java_consumers() -> None:
    assert shared_of(parse()).api_timeout_s == 60
    assert shared_of(parse(kafka__default__api__timeout__ms="2500")).api_timeout_s == 2.5


def test_settings_of_librdkafka_name_those_that_are_accepted() -> None:
    says = (
        r"^option 'kafka\.sasl\.username' is no setting: .* here it is in 'kafka.sasl.jaas.config'$"
    )
    with pytest.raises(BadOption, match=says):
        parse(kafka__sasl__username="alice")
    with pytest.raises(BadOption, match=r"did you mean 'kafka.sasl.mechanism'"):
        parse(kafka__sasl__mechanismm="PLAIN")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("subscirbe", "subscribe"),
        ("startingOffset", "startingOffsets"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("tierurl", "tier.url"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
    ],
)
def test_an_unknown_option_gets_the_nearest_name(name: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"unknown option '{name}': did you mean '{meant}'"):
        parse_options(PLACE | {name: "x"})


def test_an_option_unlike_any_other_gets_the_list_of_all() -> None:
    with pytest.raises(ValueError, match=r"unknown option 'zzz': known are .*tier\.url.*subscribe"):
        parse_options(PLACE | {"zzz": "x"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"subscribe": "t"}, "'kafka.bootstrap.servers' or 'tier.url'"),
        ({"tier.url": "file:///b"}, "exactly one of .* not none"),
        ({**PLACE, "assign": '{"t":[0]}'}, "not 'subscribe' and 'assign'"),
        (
            {**PLACE, "kafka.bootstrap.servers": "a"},
            "option 'kafka.bootstrap.servers' is 'a': .*host:port",
        ),
        (
            {"subscribe": "t", "tier.url": "memory://x"},
            "is 'memory://x': .*cannot be read by Spark",
        ),
        ({"subscribe": "t", "tier.url": "/path"}, "a URL such as file:///path"),
        (
            {"subscribe": "t", "tier.url": "s3://key:secret@b"},
            "credentials belong in the environment",
        ),
        ({**PLACE, "subscribe": " ,"}, "at least one topic name"),
        ({**PLACE, "startingOffsets": "first"}, "'earliest', 'latest' or JSON"),
        ({**PLACE, "startingOffsets": "{"}, "JSON such as"),
        ({**PLACE, "startingOffsets": '{"t":[1]}'}, "JSON such as"),
        ({**PLACE, "startingOffsets": '{"t":{"0":-3}}'}, "not -3 for partition '0'"),
        ({**PLACE, "startingOffsets": '{"t":{"x":1}}'}, "for partition 'x'"),
        ({**PLACE, "startingOffsets": '{"t":{"0":true}}'}, "not True"),
        ({**PLACE, "endingOffsets": "earliest"}, "cannot end there"),
        ({**PLACE, "endingOffsets": '{"t":{"0":-2}}'}, "cannot end at -2"),
        ({**PLACE, "startingTimestamp": "yesterday"}, "milliseconds"),
        ({**PLACE, "maxOffsetsPerTrigger": "0"}, "at least 1"),
        ({**PLACE, "tier.lease.ms": "999"}, "milliseconds from 1000 to 86400000"),
        ({**PLACE, "tier.lease.ms": "86400001"}, "milliseconds from 1000 to 86400000"),
        ({**PLACE, "minPartitions": "many"}, "at least 1"),
        ({**PLACE, "minOffsetsPerTrigger": "-1"}, "at least 1"),
        ({**PLACE, "maxRecordsPerPartition": "0"}, "at least 1"),
        (
            {**PLACE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "'minOffsetsPerTrigger' is 9: more than 'maxOffsetsPerTrigger', 8",
        ),
        ({**PLACE, "maxTriggerDelay": "soon"}, "500ms, 30s or 15m"),
        ({**PLACE, "columns": "value,ofset"}, "no column 'ofset'; there are key, value"),
        ({**PLACE, "columns": ","}, "at least one column"),
        ({**PLACE, "kafka.security.protocol": "TLS"}, "'kafka.security.protocol': 'TLS' is not"),
        ({**PLACE, "kafka.auto.offset.reset": "latest"}, "use 'startingOffsets'"),
        ({**PLACE, "kafka.key.deserializer": "x"}, "cast or decode the column"),
        ({**PLACE, "kafka.default.api.timeout.ms": "0"}, "'kafka.default.api.timeout.ms' is '0'"),
        ({**PLACE, "failOnDataLoss": "yes"}, "'true' or 'false'"),
        ({**PLACE, "kafka.isolation.level": "serializable"}, "'read_committed'"),
        ({**PLACE, "startingOffsetsByTimestampStrategy": "x"}, "'error' or 'latest'"),
        ({"tier.url": "file:///b", "assign": '{"t":0}'}, "JSON such as"),
        ({"tier.url": "file:///b", "assign": '{"t":[]}'}, "at least one partition"),
        ({"tier.url": "file:///b", "subscribePattern": "("}, "no regular expression"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_it(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as wrong:
        parse_options(given)
    assert "\n" not in str(wrong.value)


def test_a_secret_in_a_url_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="credentials") as wrong:
        parse_options({"subscribe": "t", "tier.url": "s3://key:secret@b"})
    assert "secret" not in str(wrong.value)


@pytest.mark.parametrize(
    "name", ["kafka.ssl.keystore.key", "kafka.ssl.keystore.password", "KAFKA.SSL.key.password"]
)
def test_a_secret_in_an_option_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(ValueError, match=f"option '{name.lower()}': a secret would be") as wrong:
        parse_options(PLACE | {name: "hunter2"})
    assert "hunter2" not in str(wrong.value)


def test_security_travels_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text("p=hunter3\n")
    given = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.location": "/keys.p12",
        "kafka.ssl.keystore.password": "${env:HUNTER}",
        "kafka.ssl.key.password": f"${{file:{tmp_path}/secrets:p}}",
    }
    monkeypatch.setenv("HUNTER", "hunter2")
    options = parse_options(PLACE | given)
    travels = pickle.dumps(shared_of(options))
    assert b"hunter" not in travels
    security = read_security(pickle.loads(travels).secured)
    assert security.tls is not None
    assert security.tls.own is not None
    assert (security.tls.own.password, security.tls.own.key_password) == ("hunter2", "hunter3")
    assert "hunter" not in repr(security)
    monkeypatch.delenv("HUNTER")
    with pytest.raises(UserError, match="the environment has no variable HUNTER"):
        read_security(options.secured)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("${file:/none:p}", "cannot read /none"),
        ("${file:none}", r"accepted: \$\{file:PATH:KEY\}"),
    ],
)
def test_a_secret_whose_place_is_missing_is_one_line(text: str, says: str) -> None:
    secured = parse_options(PLACE | {"kafka.ssl.keystore.password": text}).secured
    with pytest.raises(UserError, match=says):
        read_security(secured)
