"""The documentation agrees with the code: generated references are current; links, commands and settings exist."""

import itertools
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import typer.testing
from tests.doc_blocks import PAGES, TOP, blocks
from tests.integration.server_process import parser_of

from stratalog.cli.app import app
from stratalog.config.broker_settings import BROKER_SETTINGS
from stratalog.config.topic_settings import TOPIC_SETTINGS
from stratalog.coordinators.states import TRANSITIONS
from stratalog.sinks.cassandra_options import CASSANDRA_OPTIONS
from stratalog.sinks.opensearch_options import OPENSEARCH_OPTIONS
from stratalog.table.options import IDLE, OPTION_NAMES, REFUSED
from stratalog.table.sink_options import SINK_OPTIONS

TOUR = sorted(TOP.glob("docs/architecture/*.md"))
TOUR_START = TOP / "docs/architecture/README.md"
WRITTEN_BY_HAND = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/formats.md",
    "docs/monitoring.md",
    "docs/recovery.md",
    "docs/opensearch.md",
    "docs/cassandra.md",
    "docs/pipelines.md",
    "docs/spark.md",
    "docs/stores.md",
    "docs/testing.md",
    "docs/README.md",
    "docs/clients.md",
    "docs/cluster.md",
    "docs/comparison.md",
    "docs/concepts.md",
    "docs/faq.md",
    "docs/glossary.md",
    "docs/limits.md",
    "docs/production.md",
    "docs/security.md",
    "docs/tutorial.md",
    "docs/upgrades.md",
    *(str(page.relative_to(TOP)) for page in TOUR),
)


@cache
def generator() -> ModuleType:
    spec = spec_from_file_location("generate_docs", TOP / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def references() -> Mapping[str, str]:
    with patch.object(typer.testing, "_get_command", parser_of):
        written: Mapping[str, str] = generator().references()
    return written


@pytest.mark.parametrize("name", ["settings.md", "cli.md", "protocol.md", "metrics.md"])
def test_a_generated_reference_is_current(name: str) -> None:
    written = (TOP / "docs" / name).read_text()
    assert written == references()[name], "stale: run scripts/generate_docs.py"


@pytest.mark.parametrize("name", WRITTEN_BY_HAND)
def test_a_page_exists_and_has_content(name: str) -> None:
    assert (TOP / name).read_text().startswith("# ")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_the_target_of_each_link_exists(page: Path) -> None:
    broken = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_a_marked_block_names_its_test_or_its_requirement(page: Path) -> None:
    markers = re.findall(
        r"^<!-- (?:run|not run).*\n```(?:sh|python)$", page.read_text(), re.MULTILINE
    )
    marked = [block.marker for block in blocks(page) if block.marker]
    assert len(markers) == len(marked), "unknown marker"
    for marker in marked:
        if marker.startswith("run by "):
            assert page.name in (TOP / marker.removeprefix("run by ")).read_text(), marker


@cache
def class_names() -> frozenset[str]:
    files = [*TOP.glob("src/stratalog/**/*.py"), *TOP.glob("tests/sim/*.py")]
    texts = [file.read_text() for file in files if file.parent.name not in {"messages", "internal"}]
    return frozenset(re.findall(r"^class (\w+)", "\n".join(texts), re.MULTILINE))


@pytest.mark.parametrize("page", TOUR, ids=lambda page: page.stem)
def test_the_tour_names_classes_and_folders_that_exist(page: Path) -> None:
    quoted = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text())
    classes = {word for word in quoted if re.fullmatch(r"[A-Z][a-z]+\w*", word)}
    assert classes <= class_names(), classes - class_names()
    paths = [word for word in quoted if re.fullmatch(r"[a-z_]+/[a-z_/]*|[a-z_]+\.py", word)]
    for path in paths:
        assert any((top / path).exists() for top in (TOP, TOP / "src/stratalog")), path
    assert classes or paths or page.stem == "README"


def test_the_tour_leads_through_every_page() -> None:
    order = re.findall(r"^\d+\. \[.*\]\((\w+\.md)\)$", TOUR_START.read_text(), re.MULTILINE)
    assert sorted(order) == sorted(page.name for page in TOUR if page != TOUR_START)
    for page, following in itertools.pairwise(order):
        assert f"]({following}).\n" in (TOUR_START.parent / page).read_text().splitlines(True)[-1]
    for page in order:
        text = (TOUR_START.parent / page).read_text()
        headings = ("```mermaid", "**In:**", "**Out:**", "## Invariants", "## Where the code is")
        assert not [heading for heading in headings if heading not in text], page


def test_the_picture_of_groups_has_every_transition() -> None:
    drawn = re.findall(
        r"^ +(\w+) --> (\w+): (.*)$",
        (TOUR_START.parent / "coordinators.md").read_text(),
        re.MULTILINE,
    )
    table = [
        (before.value, after.value, why)
        for before, transitions in TRANSITIONS.items()
        for after, why in transitions.items()
    ]
    assert sorted(drawn) == sorted(table)


def test_a_decision_has_a_number_of_its_own() -> None:
    pages = sorted((TOP / "docs/decisions").glob("*.md"))
    numbers = [page.name.partition("-")[0] for page in pages]
    assert numbers == [f"{number:04}" for number in range(len(pages))]
    for page, number in zip(pages[1:], numbers[1:], strict=True):
        assert page.read_text().startswith(f"# {number}: "), page.name


def test_readme_opens_with_what_it_is_and_the_two_commands() -> None:
    opening = "\n".join((TOP / "README.md").read_text().splitlines()[:30])
    assert "./run" in opening
    assert "./test" in opening
    for command in ("run", "test", ".ci/run"):
        assert (TOP / command).stat().st_mode & 0o100, f"./{command} cannot be run"


def test_readme_quotes_measurements_as_they_are_recorded() -> None:
    recorded = (TOP / "bench/RESULTS.md").read_text()
    rows = re.findall(
        r"^\| (.+?) \| ([\d.]+) \| ([\d.]+) \|$", (TOP / "README.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 10
    for line, ours, kafkas in rows:
        row = rf"^\| {re.escape(line)} \| {re.escape(ours)} .*?\| {re.escape(kafkas)}[ (]"
        assert re.search(row, recorded, re.MULTILINE), line


def command_words(command: object, words: tuple[str, ...]) -> set[tuple[str, ...]]:
    found = {words}
    for name, below in getattr(command, "commands", {}).items():
        found |= command_words(below, (*words, name))
    return found


def test_commands_named_in_pages_exist() -> None:
    known = command_words(parser_of(app), ("strata",))
    firsts = {words[1] for words in known if len(words) > 1}
    groups = {words[1] for words in known if len(words) > 2}
    unknown = []
    for page in PAGES:
        for first, second in re.findall(
            r"\bstrata ([a-z]+)(?: ([a-z][a-z|-]*))?", page.read_text()
        ):
            seconds = second.split("|") if second and first in groups else []
            if first not in firsts or any(("strata", first, word) not in known for word in seconds):
                unknown.append(f"{page.name}: strata {first} {second}".rstrip())
    assert not unknown


def test_every_option_of_the_spark_source_is_documented() -> None:
    page = (TOP / "docs/spark.md").read_text()
    assert not [name for name in (*OPTION_NAMES, *SINK_OPTIONS) if f"`{name}`" not in page]


@pytest.mark.parametrize(
    ("page", "options"),
    [("opensearch.md", OPENSEARCH_OPTIONS), ("cassandra.md", CASSANDRA_OPTIONS)],
)
def test_every_option_of_the_other_sinks_is_documented(page: str, options: tuple[str, ...]) -> None:
    text = (TOP / "docs" / page).read_text()
    assert not [name for name in options if f"`{name}`" not in text]


def test_settings_named_in_pages_exist() -> None:
    options = {*OPTION_NAMES, *REFUSED, *IDLE, *SINK_OPTIONS}
    known = BROKER_SETTINGS.keys() | TOPIC_SETTINGS.keys() | options
    families = {name.partition(".")[0] for name in known}
    unknown = []
    for name in WRITTEN_BY_HAND:
        words = re.findall(r"`([a-z]+(?:\.[a-z]+){2,})`", (TOP / name).read_text())
        unknown += [
            f"{name}: {word}"
            for word in words
            if word.partition(".")[0] in families and word not in known
        ]
    assert not unknown
