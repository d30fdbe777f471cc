"""The broker's settings: Kafka's names and types, their precedence, and one line for a wrong value."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config import BrokerConfig, parse_properties
from stratalog.config.broker import NOT_SETTINGS
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.kinds import BadValue, Kind, Setting
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import UserError


def load(*overrides: str, file: str = "", environ: dict[str, str] | None = None) -> BrokerConfig:
    return BrokerConfig.load(parse_properties(file), overrides, environ or {})[0]


def warnings_of(*overrides: str, environ: dict[str, str] | None = None) -> list[str]:
    return BrokerConfig.load({}, overrides, environ or {})[1]


def test_without_settings_one_process_is_a_whole_cluster() -> None:
    config = load()
    assert config.list("process.roles") == ("broker", "controller")
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.log_dirs == ("strata-data",)
    assert config.metadata_log_dir == "strata-data"
    assert config.tier_url == ""
    assert config.sources == {}


def test_a_node_that_advertises_an_address_listens_on_every_one_as_in_kafka() -> None:
    advertised = "advertised.listeners=PLAINTEXT://broker.example:9092"
    assert [str(listener) for listener in load(advertised).listeners] == ["PLAINTEXT://:9092"]
    named = load(advertised, "listeners=PLAINTEXT://10.0.0.5:9092")
    assert [str(listener) for listener in named.listeners] == ["PLAINTEXT://10.0.0.5:9092"]


def test_override_beats_environment_beats_file_beats_default() -> None:
    file = "log.retention.ms=1\nnum.partitions=2\nsegment=x\nnode.id=3"
    environ = {"STRATA_LOG_RETENTION_MS": "10", "KAFKA_NUM_PARTITIONS": "20"}
    config = load("log.retention.ms=100", file=file, environ=environ)
    assert config.int("log.retention.ms") == 100
    assert config.int("num.partitions") == 20
    assert config.int("node.id") == 3
    assert config.int("log.segment.bytes") == 1024**3
    assert config.sources["log.retention.ms"] == "override"
    assert config.sources["num.partitions"] == "environment KAFKA_NUM_PARTITIONS"
    assert config.sources["node.id"] == "file"


def test_our_prefix_beats_kafkas() -> None:
    environ = {"STRATA_NODE_ID": "7", "KAFKA_NODE_ID": "8"}
    assert load(environ=environ).int("node.id") == 7


def test_variables_of_kafkas_scripts_are_not_settings() -> None:
    assert warnings_of(environ=dict.fromkeys(NOT_SETTINGS, "x")) == []


def test_unknown_settings_warn_and_suggest() -> None:
    (warning,) = warnings_of("log.retention.mss=5")
    unknown = "log.retention.mss (override, unknown; did you mean log.retention.ms?)"
    assert warning == f"settings without effect here (docs/settings.md): {unknown}"


def test_all_settings_without_effect_are_in_one_line() -> None:
    names = ("num.io.threads=8", "listener.name.plaintext.ssl.key=x", "confluent.license=x", "a=b")
    environ = {"KAFKA_BACKGROUND_THREADS": "1"}
    (warning,) = warnings_of(*names, "log.retention.ms=5", environ=environ)
    head, _, listed = warning.partition(": ")
    assert head == "settings without effect here (docs/settings.md)"
    assert listed.split("), ") == [
        "background.threads (environment KAFKA_BACKGROUND_THREADS, Kafka's",
        "num.io.threads (override, Kafka's",
        "listener.name.plaintext.ssl.key (override, Kafka's",
        "confluent.license (override, Confluent's",
        "a (override, unknown)",
    ]


def test_an_item_of_a_list_counts_once_as_in_kafka() -> None:
    assert load("log.dirs=/a, /b,/a").log_dirs == ("/a", "/b")


def test_broker_id_is_the_older_name_of_node_id() -> None:
    for override in ("broker.id=5", "node.id=5"):
        config, warnings = BrokerConfig.load({}, [override])
        assert (config.int("node.id"), config.int("broker.id")) == (5, 5)
        assert warnings == []
    assert load("node.id=5", file="broker.id = 5 ").int("node.id") == 5
    assert load(environ={"KAFKA_BROKER_ID": "7"}).int("node.id") == 7
    said = (
        r"^broker\.id: '5' \(from the file\) is not accepted beside node\.id=6 \(from the override\); accepted: one of "
        r"the two, or the same number$"
    )
    with pytest.raises(UserError, match=said):
        load("node.id=6", file="broker.id=5")
    with pytest.raises(UserError, match=r"^node\.id: '-1' is not accepted"):
        load("broker.id=-1")


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (Kind.LIST, {"": (), " a , b ": ("a", "b"), "a,b,a": ("a", "b")}, [",", "a,,b", "a,", " ,a"]),
        (Kind.DOUBLE, {"1d": 1.0, ".5": 0.5, "1e3F": 1000.0, "-Infinity": -inf}, ["inf", "1_0", "\u0661", "nan", "d"]),
        (Kind.BOOLEAN, {" TRUE\t": True, "\x00false": False}, ["\u00a0true", "yes", ""]),
        (Kind.LONG, {"+5": 5, "-007": -7}, ["1_000", "5.0", "0x5", "1e3", "5\u00a0", "9223372036854775808"]),
        (Kind.STRING, {" a b\n": "a b", "a\u00a0": "a\u00a0"}, []),
    ],
)  # fmt: skip
def test_a_text_is_read_as_kafka_reads_it(
    kind: Kind, accepted: dict[str, object], refused: list[str]
) -> None:
    setting = Setting("a.setting", kind, None, "")
    assert {text: setting.parse(text) for text in accepted} == accepted
    for text in refused:
        with pytest.raises(BadValue):
            setting.parse(text)


@pytest.mark.parametrize(
    ("override", "accepted"),
    [
        ("log.retention.ms=soon", "a whole number from -1 to 9223372036854775807"),
        ("log.retention.ms=1_000", "a whole number from -1"),
        ("log.retention.ms=", "a whole number from -1"),
        ("log.segment.bytes=1048575", "a whole number from 1048576 to 2147483647"),
        ("offsets.topic.segment.bytes=2000", "a whole number from 1048576 to 2147483647"),
        ("transaction.state.log.segment.bytes=2000", "a whole number from 1048576"),
        ("log.segment.bytes=2147483648", "a whole number from 1048576 to 2147483647"),
        ("auto.create.topics.enable=yes", "true or false"),
        ("authorizer.class.name=Other", "accepted: one of empty, org.apache.kafka"),
        ("compression.type=brotli", "one of uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("log.cleanup.policy=delete,shrink", "items of delete, compact"),
        ("log.cleanup.policy=delete,,compact", "items of delete, compact"),
        ("listeners=", "NAME://host:port"),
        ("advertised.listeners=", "NAME://host:port"),
        ("listeners=A://h\u2003:1", "NAME://host:port"),
        ("security.inter.broker.protocol=PLAINTEXT\u2003", "one of PLAINTEXT, SSL"),
        ("listeners=localhost:9092", "NAME://host:port"),
        ("listeners=A://:1,A://:2", "each name and each port once"),
        ("listeners=A://:99999", "NAME://host:port"),
        ("tier.url=/data/bucket", "file:///"),
        ("tier.url=ftp://x/y", "s3://bucket"),
        ("log.dir=", "directories separated by commas"),
        ("process.roles=broker,driver", "items of broker, controller"),
    ],
)
def test_a_wrong_value_is_one_line_with_name_value_and_accepted_values(
    override: str, accepted: str
) -> None:
    with pytest.raises(UserError) as caught:
        load(override)
    name, _, value = override.partition("=")
    line = str(caught.value)
    assert line.startswith(f"{name}: {value!r} is not accepted; accepted: ")
    assert accepted in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["listeners=SSL://:9092"], "SSL"),
        (["listeners=PLAINTEXT://:1", "advertised.listeners=OUT://h:2"], "OUT"),
        (["process.roles=controller"], "listeners: PLAINTEXT.* is for clients"),
        (["process.roles="], "process.roles"),
        (["controller.listener.names=PLAINTEXT"], "listeners"),
        (["node.id"], "expected NAME=VALUE"),
    ],
)
def test_contradicting_settings_are_refused(overrides: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load(*overrides)


NODE_2 = (
    "node.id=2",
    "controller.quorum.voters=1@a:9093,2@b:9093,3@c:9093",
    "controller.listener.names=CONTROLLER",
    "listeners=PLAINTEXT://:9092,CONTROLLER://:9093",
    "listener.security.protocol.map=IN:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
)
"""One of three nodes, with both roles."""


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["controller.quorum.voters=1@a"], "id@host:port"),
        (["controller.quorum.bootstrap.servers=0.0.0.0:1"], "no host 0.0.0.0"),
        (["controller.quorum.bootstrap.servers=a"], "host:port"),
        (["controller.quorum.voters=1@a:1,1@b:1"], "each id once"),
        (["controller.quorum.voters=2@0.0.0.0:9093,1@a:1"], "no host 0.0.0.0"),
        (["controller.quorum.voters=2@b:0"], "id@host:port"),
        (["node.id=4"], "controller.quorum.voters: it lacks node.id 4"),
        (["controller.listener.names="], "controller.listener.names: '' is not accepted"),
        (["listeners=PLAINTEXT://:9092"], "CONTROLLER is none of listeners"),
        (["process.roles=broker"], "controller.quorum.voters: it contains node.id 2"),
        (["process.roles=broker", "node.id=4"], "listeners: CONTROLLER is a controller's"),
        (["process.roles=broker", "controller.quorum.voters="], "controller.quorum.voters: ''"),
        (
            ["process.roles=broker", "node.id=4", "controller.listener.names="],
            "controller.listener.names: ''",
        ),
        (["process.roles=controller"], "listeners: PLAINTEXT.* is for clients"),
        (["inter.broker.listener.name=CONTROLLER"], "inter.broker.listener.name: 'CONTROLLER'"),
        (["inter.broker.listener.name=OTHER"], "inter.broker.listener.name: 'OTHER'"),
        (
            ["inter.broker.listener.name=PLAINTEXT", "security.inter.broker.protocol=PLAINTEXT"],
            "security.inter.broker.protocol: it is set beside",
        ),
        (["security.inter.broker.protocol=TLS"], "security.inter.broker.protocol: 'TLS'"),
    ],
)
def test_contradicting_roles_and_voters_are_refused(overrides: list[str], complaint: str) -> None:
    load(*NODE_2)
    with pytest.raises(UserError, match=complaint) as caught:
        load(*NODE_2, *overrides)
    assert "\n" not in str(caught.value)


def test_a_node_has_the_roles_that_it_is_configured_with() -> None:
    both = load(*NODE_2)
    assert both.quorum_voters == {1: ("a", 9093), 2: ("b", 9093), 3: ("c", 9093)}
    assert [one.name for one in both.controller_listeners] == ["CONTROLLER"]
    controller = load(*NODE_2, "process.roles=controller", "listeners=CONTROLLER://:9093")
    assert (controller.is_broker, controller.listeners) == (False, ())
    broker = load(*NODE_2, "process.roles=broker", "node.id=4", "listeners=PLAINTEXT://:9092")
    assert (broker.is_controller, broker.controller_listeners) == (False, ())
    assert not both.is_alone
    servers = "controller.quorum.bootstrap.servers=a:1,b:2"
    dynamic = load(*NODE_2, "controller.quorum.voters=", servers)
    assert dynamic.quorum_servers == (("a", 1), ("b", 2))
    assert not dynamic.is_alone, "the log names the voters"
    alone = load("controller.quorum.voters=1@localhost:9093")
    assert set(alone.quorum_voters) == {1}


def test_listeners_are_parsed_and_wrong_ones_refused() -> None:
    config = load(
        "listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://:9093,IN://[::1]:0",
        "controller.listener.names=CONTROLLER",
        "listener.security.protocol.map=IN:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "advertised.listeners=PLAINTEXT://example.org:19092",
    )
    assert [(x.name, x.host, x.port) for x in config.listeners] == [
        ("PLAINTEXT", "0.0.0.0", 9092),
        ("IN", "::1", 0),
    ]
    assert str(config.listeners[1]) == "IN://[::1]:0"
    assert [x.host for x in config.advertised_listeners] == ["example.org"]


def test_log_dirs_beats_log_dir() -> None:
    assert load("log.dir=a").log_dirs == ("a",)
    assert load("log.dir=a", "log.dirs=b, c").log_dirs == ("b", "c")
    assert load("log.dirs=b,c").metadata_log_dir == "b"


def test_properties_are_read_as_java_reads_them() -> None:
    text = "# c\n! c\n\na=1\nb: 2\n c = x=y \nd=one,\\\n  two\ne\na=3\nurl=file:///x\n"
    assert parse_properties(text) == {
        "a": "3",
        "b": "2",
        "c": "x=y",
        "d": "one,two",
        "e": "",
        "url": "file:///x",
    }


def test_escapes_of_a_properties_file_are_javas() -> None:
    text = r"""
log.dirs = /data/z\u00e9ro,\
    /data/b c \
    , C:\\kafka\tlogs
a\ b\=c\:d = x
name value
even\\\\
odd\
  goes on
empty =
wide = \ud83d\ude00
"""
    assert parse_properties(text) == {
        "log.dirs": "/data/zéro,/data/b c , C:\\kafka\tlogs",
        "a b=c:d": "x",
        "name": "value",
        "even\\\\": "",
        "oddgoes": "on",
        "empty": "",
        "wide": "😀",
    }
    with pytest.raises(UserError, match="four digits of base 16"):
        parse_properties("a=\\u00")


@given(st.sampled_from(sorted(BROKER_SETTINGS)), st.text(max_size=30))
def test_any_text_gives_a_value_or_one_line(name: str, text: str) -> None:
    """Any text gives a value that prints back to itself, or a UserError."""
    setting = BROKER_SETTINGS[name]
    complaint = ""
    value = setting.default
    try:
        value = setting.parse(text)
    except BadValue as error:
        complaint = str(error)
    if complaint:
        assert complaint.startswith(f"{name}: ")
    elif value is not None:
        assert setting.parse(setting.text(value) or "") == value


@pytest.mark.parametrize(
    "table", [BROKER_SETTINGS, {n: t.setting for n, t in TOPIC_SETTINGS.items()}]
)
def test_every_default_is_a_value_of_its_setting(table: dict[str, object]) -> None:
    for setting in table.values():
        if setting.default is not None and setting.default not in ("", ()):  # type: ignore[attr-defined]
            assert setting.parse(setting.text(setting.default)) == setting.default  # type: ignore[attr-defined]


def test_a_controller_listener_without_a_mapping_is_plaintext_as_in_kafka() -> None:
    named = ("controller.listener.names=CONTROLLER", "controller.quorum.voters=1@a:9093,2@b:9093")
    listeners = "listeners=PLAINTEXT://:9092,CONTROLLER://:9093"
    for mapping in (
        (),
        ("listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",),
    ):
        config = load("process.roles=broker,controller", "node.id=1", listeners, *named, *mapping)
        assert config.security_protocol("CONTROLLER") == "PLAINTEXT"
    for refused in (
        (listeners + ",SSL://:9094", "ssl.keystore.location=/key.pem"),
        (listeners, "listener.security.protocol.map=PLAINTEXT:PLAINTEXT"),
    ):
        with pytest.raises(UserError, match="needs the security protocol"):
            load("process.roles=broker,controller", "node.id=1", *named, *refused)
