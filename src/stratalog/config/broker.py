"""A broker's settings, parsed once at the edge.

In: the text of a properties file, `--override` items and the environment, as values. Out: `BrokerConfig`, and warnings
for a person. It never reads a file or the environment by itself, and no later layer sees text.

Precedence: override, then environment, then file, then profile, then default. In the environment
`STRATA_LOG_RETENTION_MS` is `log.retention.ms`; `KAFKA_LOG_RETENTION_MS` is too, as in Kafka's images, and yields to
the former. `CONFLUENT_TIER_…` is Confluent's `confluent.tier.…` (`aliases.py`).
"""

import builtins
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from stratalog.config.aliases import our_names
from stratalog.config.broker_settings import BROKER_SETTINGS, setting_of
from stratalog.config.kafka_only import KAFKA_ONLY_PREFIXES
from stratalog.config.kinds import BadValue, Value, trimmed
from stratalog.config.listeners import (
    SECURITY_PROTOCOLS,
    Listener,
    check_cordoned,
    items_of,
    parse_address,
    parse_listener,
)
from stratalog.config.principal_rules import PrincipalRule, parse_rules
from stratalog.config.profiles import PROFILES, WITH_THREE, WITH_TIER
from stratalog.config.quorum_settings import Address, check_quorum, parse_servers, parse_voters
from stratalog.config.sasl import SaslListener, read_sasl
from stratalog.config.shown import name_in
from stratalog.config.tls import check_server_tls, read_tls
from stratalog.errors import UserError
from stratalog.ports import Security, Tls

# Variables that Kafka's start scripts and images, or our other commands, read themselves: never settings of a broker.
NOT_SETTINGS = frozenset(
    """
    KAFKA_CLUSTER_ID KAFKA_DIR KAFKA_GC_LOG_OPTS KAFKA_HEAP_OPTS KAFKA_HOME KAFKA_JMX_HOSTNAME KAFKA_JMX_OPTS
    KAFKA_JMX_PORT KAFKA_JVM_PERFORMANCE_OPTS KAFKA_LOG4J_LOGGERS KAFKA_LOG4J_OPTS KAFKA_LOG4J_ROOT_LOGLEVEL
    KAFKA_MODE KAFKA_OPTS KAFKA_TOOLS_LOG4J_LOGLEVEL KAFKA_VERSION KAFKA_DEBUG STRATA_BOOTSTRAP_SERVER
    """.split()
)
PREFIXES = ("KAFKA_", "STRATA_")
"""Weakest first."""
_CONFLUENT = "CONFLUENT_TIER_"
_VOTERS_OF_A_CLUSTER = 3
_BESIDE_ADVERTISED = ("PLAINTEXT://:9092", "default beside advertised.listeners")
"""Kafka's default of `listeners`: a node that advertises an address expects other machines."""


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the pairs of a properties file, as java.util.Properties reads them: escapes, continuations, `\uXXXX`.

    Values are stripped, as Kafka's ConfigDef does it. Raises UserError for a malformed `\u`.
    """
    # A start without a file does not pay for the import.
    from javaproperties import InvalidUEscapeError, loads  # noqa: PLC0415

    try:
        return {name: trimmed(value) for name, value in loads(text).items()}
    except InvalidUEscapeError as error:
        raise UserError(
            f"{error.escape!r} is not accepted; accepted: \\u and four digits of base 16"
        ) from None


def parse_overrides(items: Iterable[str]) -> dict[str, str]:
    """Return `name=value` items as pairs; raises UserError for one without `=`."""
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name.strip():
            # The end of the item may be a password: repeat only a possible name.
            raise UserError(f"--override {name_in(item)}: expected NAME=VALUE")
        pairs[name.strip()] = trimmed(value)
    return pairs


def settings_of_environment(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return setting name -> (variable, value) for every variable that names a setting.

    As in Kafka's images, `___` stands for `-` and `__` for `_`.
    """
    found = {}
    for prefix in PREFIXES:
        for variable, value in sorted(environ.items()):
            if variable.startswith(prefix) and variable not in NOT_SETTINGS:
                found[_name_of(variable.removeprefix(prefix))] = (variable, value)
    for variable, value in sorted(environ.items()):
        if variable.startswith(_CONFLUENT):
            found[_name_of(variable)] = (variable, value)
    return found


def _name_of(variable: str) -> str:
    dashed = variable.lower().replace("___", "-").replace("__", "\0")
    return dashed.replace("_", ".").replace("\0", "_")


class BrokerConfig(Struct, frozen=True):
    """Every setting's value, and the source of each explicit value (`override`, `environment NAME` or `file`)."""

    values: Mapping[builtins.str, Value] = field(default_factory=dict)
    sources: Mapping[builtins.str, builtins.str] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        properties: Mapping[builtins.str, builtins.str] | None = None,
        overrides: Sequence[builtins.str] = (),
        environ: Mapping[builtins.str, builtins.str] | None = None,
        *,
        profile: builtins.str = "",
        strict: builtins.bool = False,
    ) -> tuple["BrokerConfig", builtins.list[builtins.str]]:
        """Return the configuration, and lines for people: names without effect, foreign names, and the changes of a
        profile.

        Raises UserError, one line with name, value and accepted values, for a wrong value; with `strict` also for an
        unknown name.
        """
        chosen = {name: (text, "file") for name, text in (properties or {}).items()}
        for name, (variable, text) in settings_of_environment(environ or {}).items():
            chosen[name] = (text, f"environment {variable}")
        for name, text in parse_overrides(overrides).items():
            chosen[name] = (text, "override")
        chosen, warnings = our_names(chosen)
        if profile:
            warnings += _take_profile(profile, chosen)
        _unite_ids(chosen)
        if "advertised.listeners" in chosen:
            chosen.setdefault("listeners", _BESIDE_ADVERTISED)
        values: dict[builtins.str, Value] = {}
        sources: dict[str, builtins.str] = {}
        unused: list[builtins.str] = []
        for name, (text, source) in chosen.items():
            setting = setting_of(name)
            if setting is None:
                owner = _owner(name)
                if strict and not owner:
                    raise UserError(f"unknown setting {name}{_suggestion(name)}")
                owner = owner or f"unknown{_suggestion(name)}"
                unused.append(f"{name} ({source}, {owner})")
                continue
            try:
                values[name] = setting.parse(text)
            except BadValue as bad:
                raise UserError(f"{bad} (from the {source})") from None
            sources[name] = source
            if setting.inert:
                unused.append(f"{name} ({source}, Kafka's)")
        if unused:
            warnings.append(f"settings without effect here (docs/settings.md): {', '.join(unused)}")
        config = cls(MappingProxyType(values), MappingProxyType(sources))
        config.check()
        return config, warnings

    def get(self, name: builtins.str) -> Value:
        """Return the value of a setting; None only where its default is None and it was not set."""
        if name in self.values:
            return self.values[name]
        setting = setting_of(name)
        assert setting is not None, name
        return setting.default

    def is_set(self, name: builtins.str) -> builtins.bool:
        """Return whether the setting was set, by file, environment, override or profile."""
        return name in self.values

    def int(self, name: builtins.str) -> builtins.int:
        """Return a whole number."""
        value = self.get(name)
        assert isinstance(value, int), name
        assert not isinstance(value, bool), name
        return value

    def float(self, name: builtins.str) -> builtins.float:
        """Return a number."""
        value = self.get(name)
        assert isinstance(value, float | int), name
        return value

    def bool(self, name: builtins.str) -> builtins.bool:
        """Return True or false."""
        value = self.get(name)
        assert isinstance(value, bool), name
        return value

    def str(self, name: builtins.str) -> builtins.str:
        """Return text, "" where nothing was set."""
        value = self.get(name)
        assert isinstance(value, str), name
        return value

    def list(self, name: builtins.str) -> tuple[builtins.str, ...]:
        """Return items, in order."""
        value = self.get(name)
        assert isinstance(value, tuple), name
        return value

    @property
    def log_dirs(self) -> tuple[builtins.str, ...]:
        """The log directories: `log.dirs`, else `log.dir`."""
        return self.list("log.dirs") or self.list("log.dir")

    @property
    def metadata_log_dir(self) -> builtins.str:
        """Where `__cluster_metadata-0` lives."""
        return self.str("metadata.log.dir") or self.log_dirs[0]

    @property
    def tier_url(self) -> builtins.str:
        """The bucket's URL; "" where the tier is off."""
        return self.str("tier.url")

    @property
    def cleaner_memory(self) -> tuple[builtins.int, builtins.float, builtins.int]:
        """The settings that say how many keys a cleaner's table takes: bytes, the share that is filled, threads."""
        return (
            self.int("log.cleaner.dedupe.buffer.size"),
            self.float("log.cleaner.io.buffer.load.factor"),
            self.int("log.cleaner.threads"),
        )

    @property
    def monitor(self) -> tuple[builtins.str, builtins.int] | None:
        """Host and port of the monitor; None where there is none."""
        text = self.str("monitor.listener")
        return parse_address(text) if text else None

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners that serve clients."""
        return self._serving("listeners")

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """The listeners that serve controllers, and brokers that ask a controller."""
        if not self.is_controller:
            return ()
        return self._serving("listeners", to_controllers=True)

    @property
    def advertised_listeners(self) -> tuple[Listener, ...]:
        """The listeners that clients receive; by default those of `listeners`. A host may be empty, a port 0."""
        return self._serving("advertised.listeners") or self.listeners

    def _serving(
        self, setting: builtins.str, *, to_controllers: builtins.bool = False
    ) -> tuple[Listener, ...]:
        controllers = {name.upper() for name in self.list("controller.listener.names")}
        listeners = (parse_listener(text) for text in self.list(setting))
        return tuple(one for one in listeners if (one.name in controllers) == to_controllers)

    @property
    def inter_broker_listener(self) -> builtins.str:
        """The name of the listener on which brokers reach one another."""
        names = [listener.name for listener in self.advertised_listeners]
        named = self.str("inter.broker.listener.name").upper()
        protocol = self.str("security.inter.broker.protocol")
        return named or (protocol if protocol in names else names[0])

    def security_protocol(self, listener: builtins.str) -> builtins.str:
        """Return the security protocol of a listener; a name without a mapping is itself a protocol.

        Without any mapping, controller listeners are PLAINTEXT unless a listener is named after TLS or SASL. Kafka:
        AbstractKafkaConfig.effectiveListenerSecurityProtocolMap.
        """
        items = items_of(self.str("listener.security.protocol.map"))
        protocols = dict(item.split(":", 1) for item in items)
        if not self.is_set("listener.security.protocol.map"):
            names = [one.upper() for one in self.list("controller.listener.names")]
            served = [parse_listener(text).name for text in self.list("listeners")]
            if not any(one == "SSL" or one.startswith("SASL_") for one in (*names, *served)):
                protocols.update(dict.fromkeys(names, "PLAINTEXT"))
        return protocols.get(listener, listener)

    def security(self, listener: builtins.str) -> Security:
        """Return the security of a listener's connections.

        On a SASL_SSL listener only its own `ssl.client.auth` has an effect (KIP-684).
        """
        protocol = self.security_protocol(listener)
        if not protocol.endswith("SSL"):
            return Security(protocol)
        tls = read_tls(partial(self._of_listener, listener))
        if self.ignores_client_auth(listener):
            tls = replace(tls, client_certificate="none")
        return Security(protocol, tls)

    def ignores_client_auth(self, listener: builtins.str) -> builtins.bool:
        """Whether clients of a SASL_SSL listener need no certificate although `ssl.client.auth` asks for one."""
        name, demand = self._of_listener(listener, "ssl.client.auth")
        is_login = self.security_protocol(listener) == "SASL_SSL"
        return is_login and name == "ssl.client.auth" and demand != "none"

    def sasl(self, listener: builtins.str) -> SaslListener | None:
        """Return the SASL of a listener, None for none. Raises UserError."""
        if not self.security_protocol(listener).startswith("SASL_"):
            return None
        return read_sasl(listener, partial(self._of_listener, listener))

    def client_tls(self, listener: builtins.str) -> Tls | None:
        """Return the TLS of this node as a client of the listener of another node; None for plain text."""
        if not self.security_protocol(listener).endswith("SSL"):
            return None
        return read_tls(partial(self._of_listener, listener), is_server=False)

    @property
    def token_secret(self) -> builtins.str:
        """The secret of delegation tokens, "" where there are none. It must be shown nowhere."""
        return str(self.get("delegation.token.secret.key") or "")

    def principal_rules(self, listener: builtins.str) -> tuple[PrincipalRule, ...]:
        """Return the rules that name the principals of a listener's certificates."""
        return parse_rules(str(self._of_listener(listener, "ssl.principal.mapping.rules")[1]))

    def _of_listener(
        self, listener: builtins.str, name: builtins.str
    ) -> tuple[builtins.str, Value]:
        """Return a setting's full name and value: a listener's own where it is set, else that of all listeners."""
        own = f"listener.name.{listener.lower()}.{name}"
        full = own if self.is_set(own) else name
        return full, self.get(full)

    @property
    def is_controller(self) -> builtins.bool:
        """Whether the process has the role of a controller."""
        return "controller" in self.list("process.roles")

    @property
    def is_broker(self) -> builtins.bool:
        """Whether the process has the role of a broker."""
        return "broker" in self.list("process.roles")

    @property
    def quorum_voters(self) -> dict[builtins.int, Address]:
        """The address of each voter by node id; none where this node is a quorum of its own."""
        return parse_voters(self.list("controller.quorum.voters"))

    @property
    def quorum_servers(self) -> tuple[Address, ...]:
        """Controllers to ask for the leader, where the metadata log names the voters."""
        return tuple(parse_servers(self.list("controller.quorum.bootstrap.servers")))

    @property
    def is_alone(self) -> builtins.bool:
        """Whether the configuration makes this node a quorum of its own."""
        return not self.quorum_servers and set(self.quorum_voters) <= {self.int("node.id")}

    def check(self) -> None:
        """Raise UserError for settings that are valid alone and contradict one another."""
        self._check_roles()
        check_cordoned(self.list("cordoned.log.dirs"), self.log_dirs)
        self._check_security()
        if not self.listeners and self.is_broker:
            raise UserError(
                "listeners: none is left for clients; accepted: one that is not in controller.listener.names"
            )
        if self.listeners and not self.is_broker:
            raise UserError(
                f"listeners: {self.listeners[0]} is for clients, and process.roles is controller; "
                "accepted: listeners that are in controller.listener.names"
            )
        listener_names = {listener.name for listener in self.listeners}
        for listener in self.advertised_listeners:
            if listener.name not in listener_names:
                raise UserError(
                    f"advertised.listeners: {listener} has a name that listeners lacks; "
                    f"accepted: {', '.join(sorted(listener_names))}"
                )

    def _check_security(self) -> None:
        for listener in (*self.listeners, *self.controller_listeners):
            protocol = self.security_protocol(listener.name)
            if protocol not in SECURITY_PROTOCOLS:
                raise UserError(
                    f"listeners: {listener} needs the security protocol {protocol}; accepted: "
                    f"{' or '.join(SECURITY_PROTOCOLS)}, or a name that listener.security.protocol.map maps to one"
                )
            security = self.security(listener.name)
            if security.tls is not None:
                check_server_tls(listener.name, security.tls)
            self.sasl(listener.name)

    def _check_roles(self) -> None:
        if not self.list("process.roles"):
            raise UserError(
                "process.roles: '' is not accepted; accepted: broker, controller, or both"
            )
        names = [name.upper() for name in self.list("controller.listener.names")]
        listeners = [parse_listener(text).name for text in self.list("listeners")]
        check_quorum(
            self.list("process.roles"),
            self.int("node.id"),
            self.quorum_voters,
            self.quorum_servers,
            names,
            listeners,
        )
        if self.bool("controller.quorum.auto.join.enable") and not self.is_controller:
            raise UserError(
                "controller.quorum.auto.join.enable: true is not accepted where process.roles is broker; "
                "accepted: false"
            )
        inter_broker = self.get("inter.broker.listener.name")
        if not inter_broker or not self.is_broker:
            return
        if self.is_set("security.inter.broker.protocol"):
            raise UserError(
                "security.inter.broker.protocol: it is set beside inter.broker.listener.name; accepted: one of the two"
            )
        if str(inter_broker).upper() in names or str(inter_broker).upper() not in listeners:
            raise UserError(
                f"inter.broker.listener.name: {inter_broker!r} is not accepted; accepted: the name of one of listeners "
                "that is not in controller.listener.names"
            )


def _take_profile(profile: str, chosen: dict[str, tuple[str, str]]) -> list[str]:
    """Add a profile's settings to the chosen ones; return a line for each. Raises UserError for an unknown profile."""
    if profile not in PROFILES:
        raise UserError(
            f"--profile: {profile!r} is not accepted; accepted: {', '.join(sorted(PROFILES))}"
        )
    voters = items_of(chosen.get("controller.quorum.voters", ("", ""))[0])
    left_out = set()
    if not chosen.get("tier.url", ("", ""))[0]:
        left_out.add(WITH_TIER)
    if len(voters) < _VOTERS_OF_A_CLUSTER:
        left_out.add(WITH_THREE)
    lines = []
    for advice in PROFILES[profile]:
        if advice.name in chosen:
            text, source = chosen[advice.name]
            lines.append(f"profile {profile}: {advice.name} stays {text} (from the {source})")
        elif advice.where not in left_out:
            chosen[advice.name] = (advice.value, f"profile {profile}")
            setting = BROKER_SETTINGS[advice.name]
            was = setting.text(setting.default)
            lines.append(f"profile {profile}: {advice.name}={advice.value} instead of {was}")
    return lines


def _unite_ids(chosen: dict[str, tuple[str, str]]) -> None:
    """Give `node.id` and `broker.id`, its older name, the value of the one that is set.

    Raises UserError where both are set and differ. Kafka: `KafkaConfig.populateSynonyms`, `validateValues`.
    """
    node, broker = chosen.get("node.id"), chosen.get("broker.id")
    if node is None and broker is not None:
        chosen["node.id"] = broker
    elif node is not None and broker is None:
        chosen["broker.id"] = node
    elif node is not None and broker is not None and trimmed(node[0]) != trimmed(broker[0]):
        raise UserError(
            f"broker.id: {broker[0]!r} (from the {broker[1]}) is not accepted beside node.id={node[0]} (from the "
            f"{node[1]}); accepted: one of the two, or the same number"
        )


def _owner(name: str) -> str:
    """Return the owner of a setting of Confluent's or Kafka's that this project does not define; "" for no owner."""
    if name.startswith("confluent."):
        return "Confluent's"
    return "Kafka's" if name.startswith(KAFKA_ONLY_PREFIXES) else ""


def _suggestion(name: str) -> str:
    # Imported here because only a server with a misspelt setting needs it.
    from difflib import get_close_matches  # noqa: PLC0415

    close = get_close_matches(name, BROKER_SETTINGS, n=1, cutoff=0.85)
    return f"; did you mean {close[0]}?" if close else ""
