"""Parse the options of `.format("stratalog_cassandra")`, once.

In: Spark's options, all text. Out: `CassandraOptions`, or a BadOption of one line. It never connects to anything.

User and password are not options, because Spark's plans would show them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from stratalog.config.named_options import named_options, positive, seconds, whole
from stratalog.errors import BadOption

__all__ = ["CASSANDRA_OPTIONS", "RECORD", "CassandraOptions", "parse_cassandra_options"]

PAGE = "docs/cassandra.md"
PORT = 9042

RECORD = ("topic", "partition", "offset")
"""The columns that identify a record; with them as primary key, a repeated row overwrites itself."""

_DEFAULTS = {
    "hosts": "",
    "keyspace": "",
    "table": "",
    "datacenter": "",
    "replication": "",
    "create_table": "false",
    "primary_key": "((topic, partition, offset))",
    "consistency": "LOCAL_QUORUM",
    "concurrency": "64",
    "max_retries": "10",
    "backoff.init": "1s",
    "backoff.max": "60s",
    "timeout": "10s",
}
CASSANDRA_OPTIONS = tuple(_DEFAULTS)
_SECRETS = {
    "username": "CASSANDRA_USERNAME",
    "password": "CASSANDRA_PASSWORD",
    "ssl.ca_file": "CASSANDRA_CA_FILE",
}
_CONSISTENCIES = (
    "ANY ONE TWO THREE QUORUM ALL LOCAL_QUORUM EACH_QUORUM LOCAL_ONE".split()  # the consistency levels of writes
)
_NAME = re.compile(r"[A-Za-z]\w{0,47}", re.ASCII)
_KEY = re.compile(r"\(\s*(?:\((?P<many>[^()]+)\)|(?P<one>\w+))\s*(?P<rest>(?:,\s*\w+\s*)*)\)")


@dataclass(frozen=True, slots=True)
class Key:
    """A primary key: the partition key's columns, and the clustering columns."""

    partition: tuple[str, ...]
    clustering: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.partition + self.clustering


@dataclass(frozen=True, slots=True)
class CassandraOptions:
    """`hosts`: names with ports. `replication`: the replication of a keyspace to create, in CQL; None: the keyspace
    exists.

    `create_table`: create a missing table, with `key`. `concurrency`: rows in flight in each task.
    """

    hosts: tuple[tuple[str, int], ...]
    keyspace: str
    table: str
    datacenter: str | None
    replication: Mapping[str, str] | None
    create_table: bool
    key: Key
    consistency: str
    concurrency: int
    retries_max: int
    backoff_init_s: float
    backoff_max_s: float
    timeout_s: float

    @property
    def name(self) -> str:
        """The table's name, for people."""
        return f"{self.keyspace}.{self.table}"


def parse_cassandra_options(given: Mapping[str, str]) -> CassandraOptions:
    """Parse and check everything. Raises BadOption."""
    for name in given:
        if variable := _SECRETS.get(name.lower()):
            raise BadOption(
                f"option '{name}' would be in Spark's plans: set {variable} in the environment of driver and executors"
            )
    options = named_options(given, _DEFAULTS, page=PAGE)
    for name in ("hosts", "keyspace", "table"):
        if not options[name].strip():
            raise BadOption(f"option '{name}' must say where to write (see {PAGE})")
    create = options["create_table"].strip().lower()
    if create not in {"true", "false"}:
        raise BadOption(f"option 'create_table' is {create!r}: true or false is needed")
    consistency = options["consistency"].strip().upper()
    if consistency not in _CONSISTENCIES:
        raise BadOption(
            f"option 'consistency' is {consistency!r}: one of {', '.join(_CONSISTENCIES)} is needed"
        )
    return CassandraOptions(
        hosts=_hosts(options["hosts"]),
        keyspace=_name(options, "keyspace"),
        table=_name(options, "table"),
        datacenter=options["datacenter"].strip() or None,
        replication=_replication(options["replication"].strip()),
        create_table=create == "true",
        key=_key(options["primary_key"].strip()),
        consistency=consistency,
        concurrency=positive(options, "concurrency"),
        retries_max=whole(options, "max_retries"),
        backoff_init_s=seconds(options, "backoff.init"),
        backoff_max_s=seconds(options, "backoff.max"),
        timeout_s=seconds(options, "timeout"),
    )


def _hosts(text: str) -> tuple[tuple[str, int], ...]:
    """Parse comma-separated names: `one`, `one:9042`, `[::1]:9042`. A cluster has one port for all."""
    hosts = []
    for one in filter(None, (item.strip() for item in text.split(","))):
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:]+)\]|([^\s:@/\[\]]+))(?::(\d{1,5}))?", one)
        port = int(found[3] or PORT) if found else 0
        if found is None or not 0 < port < 65536:
            raise BadOption(f"option 'hosts' has {one!r}: host or host:port is needed")
        hosts.append((found[1] or found[2], port))
    if not hosts:
        raise BadOption("option 'hosts' names none: host or host:port is needed")
    if len({port for _, port in hosts}) > 1:
        raise BadOption(
            f"option 'hosts' is {text!r}: the nodes of a cluster all have the same port"
        )
    return tuple(hosts)


def _name(options: Mapping[str, str], option: str) -> str:
    name = options[option].strip()
    if not _NAME.fullmatch(name):
        raise BadOption(
            f"option '{option}' is {name!r}: Cassandra wants letters, digits and _, at most 48, a letter in front"
        )
    return name


def _replication(text: str) -> Mapping[str, str] | None:
    """Return the replication in CQL, from `1` for a single data centre, or numbers by data centre: `{"dc1": 3, "dc2":
    2}`.
    """
    if not text:
        return None
    wrong = BadOption(
        f"option 'replication' is {text!r}: how many copies (3), or how many where "
        '({"dc1": 3, "dc2": 2}) is needed'
    )
    if text.isdecimal() and int(text) > 0:
        return {"class": "SimpleStrategy", "replication_factor": str(int(text))}
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not found:
        raise wrong
    copies: dict[str, str] = {}
    for where, count in found.items():
        if type(count) is not int or count < 1 or "'" in where:
            raise wrong
        copies[where] = str(count)
    return {"class": "NetworkTopologyStrategy", **copies}


def _key(text: str) -> Key:
    """Parse a primary key in CQL: `((topic, partition), offset)`."""
    found = _KEY.fullmatch(text)
    names = _listed(found["many"] or found["one"]) if found else ()
    more = _listed(found["rest"]) if found else ()
    key = Key(names, more)
    if not names or len(set(key.columns)) < len(key.columns):
        raise BadOption(
            f"option 'primary_key' is {text!r}: columns as in CQL, ((topic, partition), offset), are needed"
        )
    if missing := [name for name in RECORD if name not in key.columns]:
        raise BadOption(
            f"option 'primary_key' is {text!r}, without {', '.join(missing)}: "
            "rows of different records would overwrite each other"
        )
    return key


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (name.strip() for name in text.split(","))))
