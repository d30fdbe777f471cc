"""The authorizer decides by the ACLs of the newest image, keeps decisions, and knows super users and the default."""

from uuid import UUID

from msgspec.structs import replace
from tests.unit.metadata.test_acls import image_of

from stratalog.broker.network import standard_authorizer as module
from stratalog.broker.network.session import ListenerContext, Principal, Session
from stratalog.broker.network.standard_authorizer import StandardAuthorizer, standard_authorizer
from stratalog.config import BrokerConfig
from stratalog.config.authorizer_settings import STANDARD_AUTHORIZER
from stratalog.metadata.acls import Acl, Acls
from stratalog.metadata.image import EMPTY
from stratalog.metadata.rights import Operation, PatternType, Permission, Resource

READ, TOPIC = Operation.READ, Resource.TOPIC
ALLOW = Acl(TOPIC, "t", PatternType.LITERAL, "User:alice", "*", READ, Permission.ALLOW)
DENY = ALLOW._replace(permission=Permission.DENY, host="10.0.0.9")


def session(name: str, host: str = "10.0.0.1") -> Session:
    return Session(ListenerContext("PLAINTEXT"), host, Principal("User", name))


class Cluster:
    """An image that a test replaces."""

    def __init__(self) -> None:
        self.image = EMPTY
        self._acls = Acls()

    @property
    def acls(self) -> Acls:
        self._acls.follow(self.image)
        return self._acls

    def set(self, *acls: Acl) -> None:
        self.image = image_of({UUID(int=hash(acl) & 2**64 - 1): acl for acl in acls})


def test_a_decision_holds_until_an_acl_changes() -> None:
    cluster = Cluster()
    authorizer = StandardAuthorizer(cluster, ["User:root"], default=False)
    alice = session("alice")
    assert not authorizer.allows(alice, READ, TOPIC, "t")
    cluster.set(ALLOW)
    assert authorizer.allows(alice, READ, TOPIC, "t")
    assert authorizer.allows(alice, Operation.DESCRIBE, TOPIC, "t")
    assert not authorizer.allows(alice, READ, TOPIC, "u")
    assert not authorizer.allows(session("bob"), READ, TOPIC, "t")
    cluster.image = replace(cluster.image, offset=9)
    assert authorizer.allows(alice, READ, TOPIC, "t")
    cluster.set(ALLOW, DENY)
    assert authorizer.allows(alice, READ, TOPIC, "t")
    assert not authorizer.allows(session("alice", "10.0.0.9"), READ, TOPIC, "t")
    cluster.set()
    assert not authorizer.allows(alice, READ, TOPIC, "t")


def test_super_users_may_do_everything_and_the_default_is_for_resources_without_acls() -> None:
    cluster = Cluster()
    cluster.set(DENY._replace(principal="User:*", host="*"), ALLOW)
    open_to_all = StandardAuthorizer(cluster, ["User:root"], default=True)
    assert open_to_all.allows(session("root"), READ, TOPIC, "t")
    assert open_to_all.allows_any(session("root"), READ, TOPIC)
    assert not open_to_all.allows(session("alice"), READ, TOPIC, "t")
    assert open_to_all.allows(session("alice"), READ, TOPIC, "other")
    closed = StandardAuthorizer(cluster, [], default=False)
    assert not closed.allows(session("alice"), READ, TOPIC, "other")


def test_any_resource_is_asked_for_once() -> None:
    cluster = Cluster()
    authorizer = StandardAuthorizer(cluster, [], default=False)
    assert not authorizer.allows_any(session("alice"), READ, TOPIC)
    cluster.set(ALLOW)
    assert authorizer.allows_any(session("alice"), READ, TOPIC)
    assert not authorizer.allows_any(session("alice"), READ, Resource.GROUP)


def test_a_client_that_asks_for_many_names_fills_no_memory(monkeypatch) -> None:
    monkeypatch.setattr(module, "_KEPT_MAX", 10)
    authorizer = StandardAuthorizer(Cluster(), [], default=False)
    for number in range(100):
        assert not authorizer.allows(session("alice"), READ, TOPIC, f"t{number}")
        assert len(authorizer._kept) <= 10


def test_a_new_decision_displaces_the_oldest_one_alone(monkeypatch) -> None:
    """To drop thousands at once would hold the event loop for many milliseconds."""
    monkeypatch.setattr(module, "_KEPT_MAX", 10)
    authorizer = StandardAuthorizer(Cluster(), [], default=False)
    for number in range(100):
        assert not authorizer.allows(session("alice"), READ, TOPIC, f"t{number}")
        kept = [key[-1] for key in authorizer._kept]
        assert kept == [f"t{one}" for one in range(max(0, number - 9), number + 1)]


def test_the_settings_are_kafkas() -> None:
    def load(**settings: str) -> BrokerConfig:
        return BrokerConfig.load({name.replace("__", "."): v for name, v in settings.items()})[0]

    assert standard_authorizer(load(), Cluster()) is None
    made = standard_authorizer(
        load(
            authorizer__class__name=STANDARD_AUTHORIZER,
            super__users="User:root; User:ANONYMOUS",
            allow__everyone__if__no__acl__found="true",
        ),
        Cluster(),
    )
    assert made is not None
    assert made.allows(session("ANONYMOUS"), READ, TOPIC, "t")
    assert made.allows(session("alice"), READ, TOPIC, "t")


def test_decisions_on_long_names_are_not_kept() -> None:
    authorizer = StandardAuthorizer(Cluster(), [], default=False)
    for number in range(10):
        assert not authorizer.allows(session("alice"), READ, Resource.GROUP, f"{number}" * 30_000)
    assert not authorizer._kept
    assert not authorizer.allows(session("alice"), READ, Resource.GROUP, "g")
    assert len(authorizer._kept) == 1
