"""Write the references in docs/ from the code: settings, command line, protocol, metrics and log events.

In: the product's tables, commands and docstrings. Out: docs/settings.md, cli.md, protocol.md, metrics.md; with
`--check` only exit 1 where one of them is stale. It never writes anything else.

    .venv/bin/python scripts/generate_docs.py
"""

import ast
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {"TERMINAL_WIDTH": "100", "COLUMNS": "100", "NO_COLOR": "1"}

import typer
from typer.testing import CliRunner

from stratalog.broker.apis import APIS
from stratalog.cli.app import app
from stratalog.config.aliases import BROKER_ALIASES, BUCKET_ALIASES, TOPIC_ALIASES
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.kinds import Kind, Setting
from stratalog.config.profiles import LEFT_TO_YOU, PROFILES
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.monitor.metrics import METRICS, QUERIES, Metric

TOP = Path(__file__).resolve().parent.parent
SOURCE = TOP / "src" / "stratalog"
NOTICE = "<!-- Written by scripts/generate_docs.py; change the code, then run it. -->\n"
LEVELS = ("debug", "info", "warning", "error", "critical")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def default_of(setting: Setting) -> str:
    """Return a default for people, with Kafka's where that differs."""
    text = setting.text(setting.default)
    shown = "not set" if text is None else f"`{text}`" if text else "empty"
    return f"{shown} (Kafka: {setting.kafka_default})" if setting.kafka_default else shown


def setting_row(setting: Setting, *more: str) -> tuple[str, ...]:
    """Return one setting's line."""
    kind = setting.kind.name.lower() if setting.kind is not Kind.PASSWORD else "password"
    marks = "**ours** " if setting.ours else ""
    return (
        f"`{setting.name}`",
        kind,
        default_of(setting),
        setting.accepted,
        marks + setting.doc,
        *more,
    )


def profiles() -> str:
    """Return the section about `--profile`."""
    return f"""## `strata server --profile production`

What two articles advise, set where nothing else is: a file, the environment or an override beats it. The server prints
each value that it takes, and each that stays. Voters are those of `controller.quorum.voters`.

{
        table(
            ("setting", "value", "advised by", "why", "where"),
            [(f"`{a.name}`", f"`{a.value}`", a.of, a.why, a.where) for a in PROFILES["production"]],
        )
    }
What they advise besides, and why it is left alone:

{
        table(
            ("setting", "advised by", "advice", "why not"),
            [
                (", ".join(f"`{one}`" for one in name.split(", ")), of, advice, why)
                for name, of, advice, why in LEFT_TO_YOU
            ],
        )
    }
*Tips*: "Kafka tips", nine months of running Kafka at Conversant (2015). *FlashBlade*: Confluent's tiered storage on a
FlashBlade object store (2020).

"""


def aliases() -> str:
    """Confluent's names, and former names."""
    return f"""## Confluent's names for the tier, and former names

A broker translates them and logs a line for each; the present name wins where both are given. In the environment
Confluent's begin with `CONFLUENT_TIER_` or `KAFKA_CONFLUENT_TIER_`. A hotset of -1 (all) is -2 here.

{
        table(
            ("of a broker", "stands for"),
            [
                *((f"`{name}`", f"`{ours}`") for name, ours in sorted(BROKER_ALIASES.items())),
                *((f"`{name}`", "`tier.url`, together") for name in BUCKET_ALIASES),
            ],
        )
    }
{
        table(
            ("of a topic", "stands for"),
            [(f"`{name}`", f"`{ours}`") for name, ours in sorted(TOPIC_ALIASES.items())],
        )
    }
"""


def settings() -> str:
    """docs/settings.md."""
    broker = [
        setting_row(setting, setting.dynamic.value)
        for _, setting in sorted(BROKER_SETTINGS.items())
        if not setting.inert
    ]
    topic = [
        setting_row(known.setting, ", ".join(f"`{s.name}`" for s in known.synonyms) or "none")
        for _, known in sorted(TOPIC_SETTINGS.items())
        if not known.setting.inert
    ]
    head = ("name", "type", "default", "accepted", "what it does")
    topics_own = {name: known.setting for name, known in TOPIC_SETTINGS.items()}
    return f"""# Settings

{NOTICE}
Names and types are Apache Kafka's. A broker takes them from a properties file, from the environment
(`STRATA_LOG_RETENTION_MS` is `log.retention.ms`; `KAFKA_LOG_RETENTION_MS` too, and yields to the former) and from
`--override NAME=VALUE`; an override beats the environment, the environment the file. An unknown name is in a warning, a
wrong value is an error of one line and exit code 2. Settings marked **ours** do not exist in Kafka.

A properties file is read as Java reads it (escapes, continuations, `\\uXXXX`), in UTF-8; Java reads Latin-1, so write
characters beyond ASCII as `\\uXXXX` in a file for both.

## Broker

{counted(BROKER_SETTINGS)} The last column says whether a value may change
while the broker runs: for all brokers or one (cluster-wide), for one broker (per-broker), or not (read-only).

{table((*head, "while it runs"), broker)}
## Topic

{counted(topics_own)}

Set when a topic is created, or later. Otherwise the broker's setting counts, the first one that is set.

{table((*head, "broker's default"), topic)}
{profiles()}{aliases()}## Not applicable

Kafka's settings without effect here, so far. Each is kept and described, so that a file written for Kafka works as it
is. One warning at the start names those that are set.

### Of a topic

{without_effect(topics_own)}### Of a broker

{without_effect(BROKER_SETTINGS)}"""


def counted(settings: Mapping[str, Setting]) -> str:
    """Return how many of Kafka's settings have an effect."""
    kafkas = [setting for setting in settings.values() if not setting.ours]
    honoured = sum(1 for setting in kafkas if not setting.inert)
    return (
        f"{honoured} of Kafka's {len(kafkas)} settings are honoured; the other {len(kafkas) - honoured} are "
        "[not applicable](#not-applicable)."
    )


def without_effect(settings: Mapping[str, Setting]) -> str:
    """Return names by the reason why they have no effect, with counts."""
    reasons: dict[str, list[str]] = {}
    for name, setting in sorted(settings.items()):
        if setting.inert:
            reasons.setdefault(setting.inert, []).append(f"`{name}`")
    return "".join(
        f"{len(names)}, because {why}: {', '.join(names)}.\n\n" for why, names in reasons.items()
    )


def command_pages(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (words, help text) of a command and of all below it."""
    done = CliRunner().invoke(app, [*words[1:], "--help"], prog_name="strata")
    assert done.exit_code == 0, done.output
    yield words, "\n".join(line.rstrip() for line in done.output.strip().splitlines())
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from command_pages(below, (*words, name))


def cli() -> str:
    """docs/cli.md."""
    pages = [
        f"## {' '.join(words)}\n\n```\n{text}\n```\n"
        for words, text in command_pages(typer.main.get_command(app), ("strata",))
    ]
    return f"""# The `strata` command

{NOTICE}
Exit codes: 0 for success; 1 if a check found damage; 2 for an error that needs an action, explained in one line on
standard error; 130 if Ctrl-C ended a command before its work was done. A pipe that closes early (`| head`) is no error.

`strata --install-completion` adds completion to the calling shell (bash, zsh, fish): of commands, options, accepted
words, settings, profiles, and names of topics, groups and brokers. Those names come from the cluster of `-b`, if `-b`
was typed before, within two seconds. Values of a setting (`cleanup.policy=compact`) are completed by zsh and fish; bash
ends a word at `=`. `--show-completion` prints the script instead.

Keys of `--json` are in snake_case. Names of settings, topics and features stay as they are.

`STRATA_BOOTSTRAP_SERVER` in the environment stands for `-b`; a file or profile that the command line names beats it.
`-h` at the end of a command line is `--help`. With `NO_COLOR` in the environment the output has no escape sequences.

{chr(10).join(pages)}"""


def protocol() -> str:
    """docs/protocol.md."""
    rows: list[tuple[str, ...]] = []
    notes = []
    for key, api in sorted(APIS.items()):
        module = import_module(api.handler.handle.__module__)
        opening, _, body = inspect.cleandoc(module.__doc__ or "").partition("\n\n")
        low, high = api.advertised
        advertised = f"{low}-{high}" if low < high else str(low)
        served = f"{api.served[0]}-{api.served[1]}" if api.served[0] < api.served[1] else str(high)
        rows.append(
            (
                str(key),
                api.name,
                advertised,
                served,
                ", ".join(sorted(kind.value for kind in api.listeners)),
                ", ".join(f"{one.operation.name} {one.resource.name}" for one in api.rights),
                f"`broker/apis/{Path(module.__file__ or '').name}`",
            )
        )
        notes.append(
            f"### {api.name}\n\n{' '.join(opening.split())}\n\n{body.strip()}\n".rstrip() + "\n"
        )
    return f"""# Protocol

{NOTICE}
The requests of Apache Kafka's protocol that a broker answers; ApiVersions tells clients the same table. Answers come in
the order of the requests of a connection. A listener for controllers (`controller.listener.names`)
serves the APIs of "controller" alone, and all other listeners those of "broker". "rights" are the rights that a request
needs, as in Apache Kafka, where `authorizer.class.name` is set ([security](security.md#rights)).

{table(("key", "API", "advertised", "served", "listeners", "rights", "handler"), rows)}
## What the versions changed

{chr(10).join(notes)}"""


def calls_in(tree: ast.Module) -> Iterator[ast.Call]:
    """Return every call in a module."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def first_text(call: ast.Call) -> str | None:
    """Return a call's first argument where it is plain text."""
    match call.args:
        case [ast.Constant(value=str(text)), *_]:
            return text
        case _:
            return None


def log_events() -> list[tuple[str, ...]]:
    """Return (event, level, fields, module) of each line that the product logs."""
    rows = set()
    for path in SOURCE.rglob("*.py"):
        source = path.read_text()
        if "structlog" not in source and "shared.log" not in source:
            continue
        for call in calls_in(ast.parse(source)):
            text = first_text(call)
            match call.func:
                case ast.Attribute(attr=level, value=logger) if (
                    level in LEVELS and text and "log" in ast.unparse(logger).lower()
                ):
                    fields = " ".join(
                        f"`{k.arg}`" for k in call.keywords if k.arg and k.arg != "exc_info"
                    )
                    rows.add((text, level, fields, path.relative_to(SOURCE).as_posix()))
                case _:
                    pass
    return sorted(rows)


def metrics() -> str:
    """docs/metrics.md."""

    def listed(chosen: Iterable[Metric]) -> str:
        made: list[tuple[str, ...]] = [
            (
                f"`{metric.name}`",
                metric.kind.value,
                " ".join(f"`{label}`" for label in metric.labels),
                metric.meaning,
            )
            for metric in chosen
        ]
        return table(("name", "kind", "labels", "meaning"), made)

    events = table(("event", "level", "fields", "logged in"), log_events())
    return f"""# Metrics and log events

{NOTICE}
## Metrics

Served at `/metrics` of `monitor.listener` in Prometheus' text format, with prometheus_client's `process_*` (memory,
CPU, files) beside them. How to scrape and what to alert on: [monitoring.md](monitoring.md).

{listed(METRICS)}
## Metrics of Spark's queries

Served at `/pipelines.prom` of the [web console](console.md), for queries that report to it.

{listed(QUERIES)}
## Log events

One line each on standard output, as an event with named fields.

{events}"""


def references() -> Mapping[str, str]:
    """Return every generated page by its name in docs/."""
    return {
        "settings.md": settings(),
        "cli.md": cli(),
        "protocol.md": protocol(),
        "metrics.md": metrics(),
    }


def main() -> None:
    """Write the pages, or with `--check` exit 1 naming those that are stale."""
    checking = "--check" in sys.argv[1:]
    for name, text in references().items():
        page = TOP / "docs" / name
        if page.exists() and page.read_text() == text:
            continue
        if checking:
            sys.exit(f"docs/{name} is stale: run scripts/generate_docs.py")
        page.write_text(text)
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
