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
