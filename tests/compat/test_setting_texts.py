"""Every setting reads a text as Apache Kafka does: the same value, or refused by both.

Method: for each setting, texts of its type that people and programs write by mistake, and random ones of the same
pieces. Kafka's own parser reads them (`ConfigValues.java`). A difference is mended, or is in `DIFFERENT` with its
reason, which docs/limits.md gives.
"""

import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from tests.compat.test_settings import kafkas as tables_of_kafka
from tests.compat.test_settings import ours
from tests.compat.tools import java, kafka_lib

from stratalog.config import BrokerConfig, parse_properties
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.kinds import BadValue, Kind, Setting, trimmed
from stratalog.config.log import topic_values
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.errors import UserError

TIMEOUT_S = 240
SEED = 42
STRICTER = {
    # Kafka starts with these texts and cannot use them, or fails later.
    "advertised.listeners",
    "authorizer.class.name",
    "listener.security.protocol.map",
    "listeners",
    "max.connections.per.ip.overrides",
    "replica.selector.class",
    "sasl.mechanism.controller.protocol",
    "sasl.mechanism.inter.broker.protocol",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.principal.mapping.rules",
    "controller.quorum.bootstrap.servers",
    # Kafka defines no limit for these numbers. Below ours they have no meaning.
    "broker.heartbeat.interval.ms",
    "broker.session.timeout.ms",
    "controller.socket.timeout.ms",
    "default.replication.factor",
    "initial.broker.registration.timeout.ms",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "queued.max.request.bytes",
    "request.timeout.ms",
    "replica.fetch.min.bytes",
    "replica.fetch.wait.max.ms",
    "replica.high.watermark.checkpoint.interval.ms",
    "replica.lag.time.max.ms",
    "replica.socket.receive.buffer.bytes",
    "replica.socket.timeout.ms",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    # Kafka takes these and then refuses to create the topic.
    "offsets.topic.segment.bytes",
    "transaction.state.log.segment.bytes",
    # Kafka's rule for these lists lets empty items pass.
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
}
_THROTTLED = ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas")
DIFFERENT = {
    # Empty is the default here: one process without a listener for controllers. Roles are checked with the others.
    ("controller.listener.names", ""),
    ("process.roles", ""),
    # An item counts once, as in every list.
    ("controller.quorum.bootstrap.servers", "0:1,0:1"),
    *((name, text) for name in _THROTTLED for text in ("*,*", "0:1,0:1")),
}
"""Texts that both take, with different values, or that we take alone."""
RANDOM_TEXTS = 40
SPACES = ["", " ", "\t", "\n", "\u00a0", "\u2003", "\x00", "\x1f", "\x0b", "\x85"]
NUMBERS = [
    "0",
    "1",
    "-1",
    "5",
    "+5",
    "007",
    "-0",
    "1048576",
    "1_000",
    "1,000",
    "1.0",
    "1e3",
    "0x10",
    "1L",
    "--1",
    "+-1",
]
NUMBERS += [
    "+",
    "-",
    "",
    "\u0661\u0662",
    "\uff11",
    "\u00b2",
    "\u2167",
    "1 0",
    "32768",
    "2147483647",
    "2147483648",
]
NUMBERS += [
    "-2147483648",
    "-2147483649",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
]
NUMBERS += ["-9223372036854775809", "9" * 30, "9" * 5000, "10k", "1 MB", "infinity"]
DOUBLES = [
    *NUMBERS,
    "0.5",
    ".5",
    "5.",
    "1d",
    "1f",
    "0.5F",
    "1e-3",
    "1E400",
    "-1e400",
    "0x1p-1",
    "0x.8p0",
    "0x1",
    "inf",
]
DOUBLES += [
    "Infinity",
    "-Infinity",
    "nan",
    "NaN",
    "+NaN",
    "1_0.5",
    "0,5",
    "1e",
    "e1",
    ".",
    "0x1p",
    "1e5000",
    "0x1P3d",
]
DOUBLES += ["\u0661.5", "0.\uff15", "1.7976931348623157e308", "4.9e-324", "1e-5000"]
BOOLEANS = [
    "true",
    "TRUE",
    "False",
    "tRuE",
    "yes",
    "no",
    "on",
    "1",
    "0",
    "t",
    "",
    "true false",
    "'true'",
    "fal\u017fe",
]
WORDS = [
    "a",
    "A b",
    "",
    "delete",
    "compact",
    "Delete",
    "lz4",
    "LZ4",
    "gzip",
    "none",
    "producer",
    "all",
    "*",
    "0:1",
    "-1",
]
WORDS += [
    "CreateTime",
    "createtime",
    "PLAINTEXT",
    "SSL",
    "TLSv1.3",
    "required",
    "REQUIRED",
    "\u00e9",
    "a=b",
    "broker",
]
LISTS = [
    ",",
    ",,",
    "a,",
    ",a",
    "a,,b",
    "a, ,b",
    "a,a",
    "a,b,a",
    "a ,\tb",
    " a , b ",
    "delete,compact",
    "delete,delete",
]
LISTS += [
    "compact, delete",
    "delete,",
    "delete,,compact",
    "broker,controller",
    "broker,broker",
    "a\u00a0,b",
    "a\x00,b",
]
LISTS += [
    "*,*",
    "0:1,0:2",
    "0:1,0:1",
    "0:1,",
    "GSSAPI,PLAIN",
    "PLAIN,",
    "TLSv1.2,TLSv1.2",
    "\n",
    "a\n,b",
    "PLAINTEXT://:1",
]
POOLS = {
    Kind.BOOLEAN: BOOLEANS,
    Kind.INT: NUMBERS,
    Kind.SHORT: NUMBERS,
    Kind.LONG: NUMBERS,
    Kind.DOUBLE: DOUBLES,
    Kind.LIST: [*WORDS, *LISTS],
}


def texts_of(setting: Setting, chance: Random) -> Iterator[str]:
    pool = POOLS.get(setting.kind, [*WORDS, *NUMBERS])
    yield from pool
    if setting.default is not None:
        yield setting.text(setting.default) or ""
    for _ in range(RANDOM_TEXTS):
        one = chance.choice(pool)
        if setting.kind is Kind.LIST and chance.random() < 0.5:
            one = ",".join(chance.choices([*pool, *SPACES], k=chance.randint(2, 4)))
        yield chance.choice(SPACES) + one + chance.choice(SPACES)


def kafkas(cases: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """Return what Kafka says of a text of a setting or of a file: `bad`, or `ok` and the value in base64."""
    source = Path(__file__).with_name("ConfigValues.java")
    encoded = (
        "\t".join([*names, b64encode(text.encode()).decode()]) + "\n" for *names, text in cases
    )
    done = subprocess.run(
        [java(), "-XX:TieredStopAtLevel=1", "-cp", f"{kafka_lib()}/*", str(source)],
        input="".join(encoded),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split("\t") for line in done.stdout.splitlines()]


def value_of(setting: Setting, answer: list[str]) -> object:
    """Return Kafka's value as ours; BadValue for a text that it refuses."""
    if answer[0] == "bad":
        return BadValue
    if setting.kind is Kind.LIST:
        return tuple(b64decode(one).decode() for one in answer[1].split(";")[:-1])
    text = b64decode(answer[1]).decode()
    match setting.kind:
        case Kind.BOOLEAN:
            return text == "true"
        case Kind.INT | Kind.SHORT | Kind.LONG:
            return int(text)
        case Kind.DOUBLE:
            return float(text)
        case _:
            return text


def our_value(setting: Setting, text: str) -> object:
    try:
        return setting.parse(text)
    except BadValue:
        return BadValue


def test_every_text_is_read_as_kafka_reads_it() -> None:
    chance = Random(SEED)
    cases = [
        (table, name, text)
        for table in ("broker", "topic")
        for name in tables_of_kafka(table)
        for text in texts_of(ours(table)[name], chance)
    ]
    answers = kafkas(cases)
    assert len(answers) == len(cases) > 25_000
    stricter: set[str] = set()
    differences = []
    for (table, name, text), answer in zip(cases, answers, strict=True):
        setting = ours(table)[name]
        theirs, found = value_of(setting, answer), our_value(setting, text)
        if theirs == found or is_known(setting, text, theirs, found):
            continue
        if found is BadValue and name in STRICTER:
            stricter.add(name)
        elif (name, trimmed(text)) not in DIFFERENT:
            differences.append(f"{table} {name}: {text!r} is {found!r} here, {theirs!r} there")
    assert not differences, "\n".join(differences[:50])
    assert stricter == STRICTER, "what differs no longer is in no list"


def is_known(setting: Setting, text: str, theirs: object, found: object) -> bool:
    """Return whether a difference is one of a whole type."""
    if setting.inert and theirs is BadValue:
        return True  # without effect it has no limits, and a class is not loaded
    if setting.kind is Kind.CLASS:
        return theirs == f"class {found}"  # Kafka prints the class that it loaded
    is_odd_number = "nan" in text.lower() or "0x" in text
    return setting.kind is Kind.DOUBLE and is_odd_number and found is BadValue


NODE = """process.roles=broker,controller
controller.quorum.voters=5@127.0.0.1:9093
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
"""
IDS = [["node.id=5"], ["broker.id=5"], ["node.id=5", "broker.id= 5"], ["node.id=5", "broker.id=6"]]
DIRECTORIES = [
    ["log.dir=/a"],
    ["log.dirs=/b,/c"],
    ["log.dir=/a", "log.dirs=/b"],
    ["log.dirs=/b", "metadata.log.dir=/d"],
]
TIMES = ["1", "24", "1048577", "-1"]
OTHER_VALUES = {
    Kind.BOOLEAN: ["true", "false"],
    Kind.DOUBLE: ["0.25"],
    Kind.LIST: ["compact", "compact,delete"],
    Kind.STRING: ["lz4", "LogAppendTime"],
}
FILES = 2000


def files(chance: Random) -> Iterator[str]:
    """Settings behind a topic's, by their newer and older names, alone and together."""
    synonyms = sorted({one.name for topic in TOPIC_SETTINGS.values() for one in topic.synonyms})
    names = [name for name in synonyms if name in tables_of_kafka("broker")]
    together = [["log.dirs=/b", *ids] for ids in IDS] + [["node.id=5", *one] for one in DIRECTORIES]
    for _ in range(FILES):
        chosen = chance.sample(names, chance.randint(1, 4))
        values = [
            chance.choice(OTHER_VALUES.get(BROKER_SETTINGS[name].kind, TIMES)) for name in chosen
        ]
        together.append(
            ["log.dirs=/b", "node.id=5", *map("=".join, zip(chosen, values, strict=True))]
        )
    yield from (NODE + "\n".join(lines) for lines in together)


def test_older_names_of_settings_mean_what_they_mean_in_kafka() -> None:
    texts = list(files(Random(SEED)))
    answers = kafkas([("file", text) for text in texts])
    taken = 0
    for text, answer in zip(texts, answers, strict=True):
        if answer[0] == "bad":
            continue  # it checks some limits across settings, which ours has for each setting
        pairs = dict(line.split("=", 1) for line in b64decode(answer[1]).decode().splitlines())
        try:
            config, warnings = BrokerConfig.load(parse_properties(text))
        except UserError as error:
            assert any(f"{name}=-1" in text for name in STRICTER), f"{error}: {text}"
            continue
        found = {
            name: TOPIC_SETTINGS[name].setting.text(value)
            for name, value in topic_values(config, {}).items()
        }
        found |= {name: str(config.int(name)) for name in ("node.id", "broker.id")}
        found |= {
            "log.dirs": ",".join(config.log_dirs),
            "metadata.log.dir": config.metadata_log_dir,
        }
        differ = {
            name: (found[name], value)
            for name, value in pairs.items()
            if found[name] != value.strip("[]").replace(", ", ",")
        }
        assert not differ, text
        assert warnings == []
        taken += 1
    assert taken > FILES / 4
    assert [answer[0] for answer in answers[: len(IDS)]] == ["ok", "ok", "ok", "bad"]
    with pytest.raises(UserError, match=r"^broker\.id"):
        BrokerConfig.load(parse_properties(texts[3]))
