"""Rows are printed as a table for people and as JSON for programs."""

import json
from pathlib import Path

import pytest

from stratalog.cli.node.serving import load_config
from stratalog.cli.shared.terminal import cell, show
from stratalog.errors import UserError


def test_rows_as_json_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"a": 1, "b": None}, {"a": 2, "b": ["x"]}], as_json=True)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == [{"a": 1, "b": None}, {"a": 2, "b": ["x"]}]


def test_a_long_path_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/".join(["part"] * 60)
    show([{"n": 1, "path": path}], as_json=False)
    assert path in capsys.readouterr().out


def test_text_that_looks_like_markup_is_printed_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([{"topic": "[red]x[/red]"}], as_json=False)
    assert "[red]x[/red]" in capsys.readouterr().out


def test_a_name_is_whole_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    name = "remote.log.manager.task.retry.backoff.max.ms"
    show([{"name": name, "value": "x" * 50}, {"name": "a", "value": ""}], as_json=False)
    head, first, second = capsys.readouterr().out.splitlines()
    assert "name" in head
    assert first == f"{name}  {'x' * 50}"
    assert second == "a"


def test_numbers_are_aligned_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"t": "a", "n": 5}, {"t": "bbb", "n": 1234}], as_json=False)
    assert capsys.readouterr().out.splitlines() == ["t       n", "a       5", "bbb  1234"]


def test_one_long_name_does_not_widen_the_other_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("n" * 60, "n" * 61, "n" * 200):
        show([{"user": name, "rounds": 4096}, {"user": "a", "rounds": 4096}], as_json=False)
        head, first, second = capsys.readouterr().out.splitlines()
        assert first == f"{name}    4096"
        assert (head, second) == (f"user{' ' * 58}rounds", f"a{' ' * 63}4096")


def test_an_empty_result_is_a_note_for_people_and_a_list_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([], as_json=False, empty="no topics")
    assert capsys.readouterr() == ("", "no topics\n")
    show([], as_json=True)
    assert capsys.readouterr().out == "[]\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        ([1, 2], "1 2"),
        ({"a": 1}, "a=1"),
        (3.5, "3.5"),
        ("a\x1b[31m\nb é", "a\\x1b[31m\\nb é"),
    ],
)
def test_a_cell_shows_any_value_on_one_line(value: object, text: str) -> None:
    assert cell(value) == text


def test_a_wrong_properties_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a properties file"):
        load_config(tmp_path / "binary", [])
    (tmp_path / "cut").write_text("a=\\u00")
    with pytest.raises(UserError, match=r"cut: .*u00' is not accepted; accepted: .*four digits"):
        load_config(tmp_path / "cut", [])
    with pytest.raises(UserError, match="Is a directory"):
        load_config(tmp_path, [])
