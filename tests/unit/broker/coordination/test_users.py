"""SCRAM tells a client without a password nothing about names: each has a salt that stays."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from stratalog.broker.coordination.users import users_of
from stratalog.broker.network.sasl import Users
from stratalog.config import BrokerConfig
from stratalog.metadata.image import EMPTY, Broker, Image
from stratalog.wire.internal.security_records import UserScramCredentialRecord

SHA256, SHA512 = 1, 2
SIZES = {"alice": (32, 4096), "bob": (32, 4096), "carol": (25, 8192)}


def image(*users: str, directory: int = 1000) -> Image:
    records = {
        (UserScramCredentialRecord.__name__, (name, SHA256)): UserScramCredentialRecord(
            name=name,
            mechanism=SHA256,
            salt=name.encode().ljust(SIZES[name][0], b"."),
            stored_key=b"s" * 32,
            server_key=b"k" * 32,
            iterations=SIZES[name][1],
        )
        for name in users
    }
    broker = Broker(1, 1, UUID(int=5), (), directories=(UUID(int=directory),))
    return Image(brokers={1: broker}, foreign=records) if records else Image(brokers={1: broker})


def node(cluster: Image, number: int = 1, secret: str = "") -> Users:
    """The users of one node after a start; each start draws other random ids."""
    overrides = [f"delegation.token.secret.key={secret}"] if secret else []
    config = BrokerConfig.load({}, overrides, {})[0]
    entropy = SimpleNamespace(uuid=lambda: UUID(int=number))
    outside: Any = SimpleNamespace(entropy=entropy, clock=None)
    metadata: Any = SimpleNamespace(image=cluster)
    return users_of(metadata, outside, config)


def seen(users: Users, name: str, mechanism: int = SHA256) -> tuple[bytes, int]:
    found = users.scram(mechanism, name) or users.unknown(mechanism, name, False)
    return found.salt, found.iterations


def test_an_unknown_name_has_the_same_salt_on_each_node_and_after_a_restart() -> None:
    cluster = image("alice", "bob")
    first, second = node(cluster, 1), node(cluster, 2)
    assert seen(first, "mallory") == seen(second, "mallory")
    assert seen(first, "mallory") != seen(first, "trudy")
    with_secret = node(cluster, 1, "planted"), node(image("bob", directory=2000), 2, "planted")
    assert seen(with_secret[0], "mallory") == seen(with_secret[1], "mallory")
    assert seen(with_secret[0], "mallory") != seen(first, "mallory")
    assert seen(node(image("alice", directory=2000)), "mallory")[0] != seen(first, "mallory")[0]


def test_unknown_names_have_salts_and_iterations_as_users_have() -> None:
    users = node(image("alice", "bob", "carol"))
    names = [f"name-{number}" for number in range(200)]
    shapes = [(len(salt), iterations) for salt, iterations in (seen(users, name) for name in names)]
    assert set(shapes) == {(32, 4096), (25, 8192)}
    assert len({seen(users, name)[0] for name in names}) == len(names)
    only = node(image("carol"))
    assert {(len(seen(only, name)[0]), seen(only, name)[1]) for name in names} == {(25, 8192)}
    assert len(seen(only, "mallory", SHA512)[0]) == 32
    assert seen(node(EMPTY), "mallory")[1] == 4096


def test_a_further_user_changes_few_of_the_others() -> None:
    before, after = node(image("alice", "carol")), node(image("alice", "bob", "carol"))
    names = [f"name-{number}" for number in range(200)]
    assert sum(seen(before, name) != seen(after, name) for name in names) < len(names) / 2


def test_an_unknown_token_looks_like_a_token() -> None:
    users = node(image("carol"), secret="planted")
    found = users.unknown(SHA512, "id", True)
    assert (len(found.salt), len(found.stored), found.iterations) == (32, 64, 4096)
    assert found.salt != users.unknown(SHA512, "id", False).salt
