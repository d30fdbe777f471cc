"""The console's pages about ACLs, users, quotas and moves, beside what `strata` has set."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from markupsafe import escape
from tests.cluster_processes import ClusterProcesses
from tests.integration.console_process import Console, console_process
from tests.integration.server_process import Server, strata

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = (f"authorizer.class.name={STANDARD}", "allow.everyone.if.no.acl.found=true")
    with Server(tmp_path_factory.mktemp("rights"), settings) as started:
        yield started


@pytest.fixture(scope="module")
def console(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    with console_process(tmp_path_factory.mktemp("console"), server.address) as started:
        yield started


def ok(address: str, *words: str, stdin: str = "") -> None:
    done = strata(*words, "-b", address, stdin=stdin)
    assert done.returncode == 0, done.stderr


def test_acls_and_users_are_listed_searched_and_escaped(server: Server, console: Console) -> None:
    assert "The cluster has no ACLs" in console.get("/acls").text
    hostile = "User:<b>eve"
    for principal in ("User:ann", hostile):
        words = ("acl", "add", "--topic", "orders", "--principal", principal)
        ok(server.address, *words, "--operation", "read")
    password = console.output.with_name("password")
    password.write_text("secret\n")
    ok(server.address, "user", "create", "ann", "--password-file", str(password))
    found = console.json("/acls.json")
    assert {(one["name"], one["operation"], one["permission"]) for one in found["acls"]} == {
        ("orders", "READ", "ALLOW")
    }
    assert found["users"] == [{"user": "ann", "mechanisms": ["SCRAM-SHA-256"]}]
    assert [one["principal"] for one in console.json("/acls.json?q=ANN")["acls"]] == ["User:ann"]
    text = console.get("/acls").text
    assert "User:&lt;b&gt;eve" in text
    assert "secret" not in text
    assert "No ACL matches" in console.get("/acls?q=nothing").text


DENIED = "cluster_authorization_failed"
REMEDY = "give the console's user the right to see it: strata acl add"


def test_a_console_without_rights_names_them_on_each_page(tmp_path: Path) -> None:
    settings = (f"authorizer.class.name={STANDARD}", "super.users=User:admin")
    with (
        Server(tmp_path, settings) as server,
        console_process(tmp_path / "console", server.address) as console,
    ):
        (wrong,) = console.json("/overview.json")["wrong"]
        assert (DENIED in wrong["what"], wrong["remedy"]) == (True, REMEDY)
        assert "refuses" in console.get("/brokers").text
        reasons = {
            "/acls": ("refused", "users_refused"),
            "/quotas": ("refused",),
            "/reassignments": ("refused",),
            "/quorum": ("refused",),
        }
        for path, names in reasons.items():
            found = console.json(f"{path}.json")
            for name in names:
                assert found[name].endswith(f"{DENIED}; {REMEDY}"), (path, name)
                assert escape(found[name]) in console.get(path).text
        (silent,) = console.json("/settings.json")["silent"]
        assert silent["error"].endswith(REMEDY)
        assert escape(silent["error"]) in console.get("/settings").text
        for path in ("/brokers/1", "/topics/secret", "/groups/secret", "/pipelines"):
            answer = console.get(path)
            assert (answer.status, str(escape(REMEDY)) in answer.text) == (403, True), path


def test_quotas_are_listed(server: Server, console: Console) -> None:
    assert "No client has a quota" in console.get("/quotas").text
    ok(server.address, "quota", "set", "--user", "ann", "--producer-byte-rate", "1MiB")
    (row,) = console.json("/quotas.json")["quotas"]
    assert row == {
        "user": "ann",
        "client_id": None,
        "ip": None,
        "limits": {"producer_byte_rate": 1048576.0},
    }
    assert "1.0 MiB/s" in console.get("/quotas").text


def test_a_cluster_without_an_authorizer_says_so(tmp_path: Path) -> None:
    with (
        Server(tmp_path) as server,
        console_process(tmp_path / "console", server.address) as console,
    ):
        answer = console.get("/acls")
    assert answer.status == 200
    assert "authorizer.class.name" in answer.text


@pytest.mark.timeout(300)
def test_a_move_is_shown_while_it_lasts(tmp_path: Path) -> None:
    with (
        ClusterProcesses(tmp_path) as nodes,
        console_process(tmp_path / "console", nodes.address) as console,
    ):
        address = nodes.address
        ok(address, "topic", "create", "moving", "--replication-factor", "1")
        assert console.json("/reassignments.json")["moves"] == []
        for _ in range(20):
            ok(address, "produce", "moving", stdin=("x" * 999 + "\n") * 500)
        before = console.json("/topics/moving.json")["partitions"][0]["replicas"]
        (other,) = sorted(set(nodes.ids) - set(before))[:1]
        plan = ("partition", "reassign", "moving", "--partition", "0", "--replicas", str(other))
        ok(address, *plan, "--throttle", "10kB/s", "--no-wait")
        (row,) = console.json("/reassignments.json")["moves"]
        assert (row["topic"], row["adding"], row["removing"]) == ("moving", [other], before)
        assert "moving" in console.get("/reassignments").text
