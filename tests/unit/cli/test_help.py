"""Every command's help ends with an example that the command understands; the shell completes commands and names."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.integration.server_process import strata
from typer.main import get_command

from stratalog.cli.app import app
from stratalog.testing import TemporaryBroker

NO_DATA = {"server", "demo", "storage format", "topic alter", "topic move", "topic delete"} | {
    "acl add",
    "acl remove",
    "broker undrain",
    "cluster bootstrap",
    "cluster kill",
    "cluster restart",
    "cluster stop",
    "config alter",
    "console",
    "group delete",
    "metrics push",
    "metrics rules",
    "quorum add",
    "quorum remove",
    "quota remove",
    "quota set",
    "tail",
    "token expire",
    "token renew",
    "txn abort",
    "user alter",
    "user create",
    "profile create",
    "profile delete",
    "profile use",
    "user delete",
}
"""Commands that print nothing but notes."""


def leaves(command: object, words: tuple[str, ...] = ()) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, below in getattr(command, "commands", {}).items():
        found += leaves(below, (*words, name))
    return found or [(" ".join(words), command)]  # type: ignore[list-item]


COMMANDS = leaves(get_command(app))
each = pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[words for words, _ in COMMANDS])


@each
def test_help_has_an_example_that_parses(words: str, command: click.Command) -> None:
    examples = [
        line.strip().removeprefix("Example: ")
        for line in strata(*words.split(), "--help").stdout.splitlines()
        if line.strip().startswith("Example: ")
    ]
    assert examples, "the help has no example"
    for example in examples:
        first, *rest = shlex.split(example)
        count = len(words.split())
        assert [first, *rest[:count]] == ["strata", *words.split()]
        # This call raises an error if the command does not understand the example.
        command.make_context(words, rest[count:])


@each
def test_help_shows_no_internal_words_of_the_parser(words: str, command: click.Command) -> None:
    shown = strata(*words.split(), "--help").stdout
    types = re.findall(r"^ +-.*<(?!\w+\|)[^>]*>|<list\[.*>", shown, re.MULTILINE)
    assert types == [], "an option's metavar is missing"
    assert "[default: -1]" not in shown
    assert "[[" not in shown


def groups_of(command: object, words: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    """Return each group of commands, the first one with no words."""
    below = getattr(command, "commands", {})
    found = [(words, command)] if below else []
    return found + [one for name in below for one in groups_of(below[name], (*words, name))]


@pytest.mark.parametrize("words", ["", *(words for words, _ in COMMANDS)])
def test_no_line_of_help_is_longer_than_a_terminal(words: str) -> None:
    lines = strata(*words.split(), "-h").stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []


GROUPS = groups_of(get_command(app))


@pytest.mark.parametrize(
    ("words", "group"), GROUPS, ids=[" ".join(words) or "strata" for words, _ in GROUPS]
)
def test_a_group_shows_the_first_sentence_of_each_command_whole(
    words: tuple[str, ...], group: click.Group
) -> None:
    shown = strata(*words, "-h").stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    joined = " ".join(shown.partition("Commands:")[2].split())
    for name, command in group.commands.items():
        sentence = " ".join((command.help or "").split()).split(". ")[0].rstrip(".")
        assert f"{name} {sentence}" in joined


@each
def test_commands_that_print_data_print_json(words: str, command: click.Command) -> None:
    has_json = any("--json" in option.opts for option in command.params)
    assert has_json == (words not in NO_DATA)


# Completion by the shell


def completed(shell: str, typed: str) -> list[str]:
    """Return the completions that a shell gets for the last typed word."""
    asked = {
        "bash": {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": typed},
        "fish": {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    done = strata(environ={"_STRATA_COMPLETE": f"complete_{shell}", **asked})
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_commands_and_options(shell: str) -> None:
    offered = completed(shell, "strata gr")
    assert any("group" in word for word in offered), offered
    assert not any("topic" in word for word in offered)
    assert any("--partitions" in word for word in completed(shell, "strata topic create --part"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    done = strata(environ={"_STRATA_COMPLETE": f"source_{shell}"})
    assert f"complete_{shell}" in done.stdout
    assert "strata" in done.stdout


def test_names_of_topics_and_groups_are_completed(broker: TemporaryBroker) -> None:
    at = f"-b {broker.address}"
    for name in ("orders", "others", "payments"):
        assert strata("topic", "create", name, *at.split()).returncode == 0
    moved = ("--topic", "orders", "--to", "end")
    assert strata("group", "reset-offsets", "billing", *moved, *at.split()).returncode == 0
    for words in ("topic describe", "consume", "produce", "perf consume"):
        assert completed("bash", f"strata {words} {at} o") == ["orders", "others"], words
    assert completed("bash", f"strata config describe {at} --topic o") == ["orders", "others"]
    assert completed("bash", f"strata topic describe {at} ") == ["orders", "others", "payments"]
    assert completed("bash", f"strata topic describe {at} _") == ["__consumer_offsets"]
    assert completed("bash", f"strata group describe {at} b") == ["billing"]
    assert completed("bash", f"strata consume orders {at} --group ") == ["billing"]


def test_settings_are_completed_and_their_accepted_words() -> None:
    assert completed("bash", "strata topic create t -c local.r") == [
        "local.retention.bytes=",
        "local.retention.ms=",
    ]
    for words in ("server", "storage format", "cluster start"):
        assert completed("bash", f"strata {words} --override tier.u") == ["tier.url="], words
    assert completed("bash", "strata topic alter t -u cleanup") == ["cleanup.policy"]
    assert completed("bash", "strata config alter --broker 1 -s log.cleaner.th") == [
        "log.cleaner.threads="
    ]
    assert completed("bash", "strata config alter --topic t -s log.cleaner") == []
    values = completed("fish", "strata topic alter t -s cleanup.policy=")
    assert values == ["cleanup.policy=delete", "cleanup.policy=compact"]
    assert completed("fish", "strata server --override auto.create.topics.enable=f") == [
        "auto.create.topics.enable=false"
    ]
    assert completed("fish", "strata topic alter t -s retention.ms=") == []


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("consume t --from b", ["beginning"]),
        ("consume t --isolation-level read_c", ["read_committed"]),
        ("group reset-offsets g --to e", ["end"]),
        ("topic trim t --before e", ["end"]),
        ("produce t --compression s", ["snappy"]),
        ("produce t --acks a", ["all"]),
        ("tail x --format ", ["raw", "json"]),
        ("tail x --from e", ["end"]),
        ("tail x --compression l", ["lz4"]),
        ("acl add --operation des", ["describe", "describe-configs", "describe-tokens"]),
        ("acl check User:a clu", ["cluster-action"]),
        ("user create a --mechanism SCRAM-SHA-5", ["SCRAM-SHA-512"]),
        ("quota remove --quota pro", ["producer_byte_rate"]),
        ("server --profile p", ["production"]),
    ],
)
def test_accepted_words_are_completed(typed: str, offered: list[str]) -> None:
    assert completed("bash", f"strata {typed}") == offered


def test_profiles_and_brokers_are_completed(
    broker: TemporaryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert completed("bash", "strata profile use ") == []
    for name in ("prod", "proof", "test"):
        assert strata("profile", "create", name, "-b", broker.address).returncode == 0
    for words in ("--profile", "profile use", "profile delete"):
        assert completed("bash", f"strata {words} pro") == ["prod", "proof"], words
    (tmp_path / "strata" / "profiles.json").write_text("{")
    assert completed("bash", "strata profile use pro") == []
    (tmp_path / "strata" / "profiles.json").unlink()
    assert completed("bash", f"strata broker drain -b {broker.address} ") == ["1"]
    assert completed("bash", f"strata config describe -b {broker.address} --broker ") == ["1"]


def test_without_a_server_no_name_is_completed() -> None:
    assert completed("bash", "strata topic describe -b 127.0.0.1:1 o") == []


def test_a_real_bash_completes(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    command = tmp_path / "strata"
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom stratalog.cli.main import main\n"
        "sys.argv[0] = 'strata'\nmain()\n"
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    script = (
        'eval "$(_STRATA_COMPLETE=source_bash strata)"; COMP_WORDS=(strata top); COMP_CWORD=1; '
        '$(complete -p strata | sed "s/.*-F \\([^ ]*\\).*/\\1/") strata; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [bash, "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["topic"], done.stderr
