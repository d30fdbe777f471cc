"""The state of `strata tail`: what each release left on the disk is read, and today's form does not change."""

from dataclasses import replace
from pathlib import Path

import pytest

from stratalog.cli.records.tail_state import TailState
from stratalog.cli.records.tracked import Entry, FileKey
from stratalog.errors import UserError

GOLDEN = Path(__file__).parents[3] / "golden" / "formats"
DONE = Entry(
    "/var/log/app.log.1",
    65024,
    16,
    position=90,
    head_bytes=90,
    head="a1" * 16,
    behind="b2" * 16,
    is_done=True,
    size=90,
    modified_ns=1794000000123456789,
    origin="/var/log/app.log",
    born_ns=1793000000123456789,
    real="/var/log/app.log.1",
    home="/var/log/app.log",
    number=1,
)
LIVE = Entry(
    "/var/log/app.log",
    65024,
    17,
    position=2048,
    head_bytes=1024,
    head="c1" * 16,
    behind="d2" * 16,
    size=2060,
    modified_ns=1795000000123456789,
    origin="/var/log/app.log",
    born_ns=1794000000223456789,
    real="/var/log/app.log",
    home="/var/log/app.log",
    number=2,
)


def opened(place: Path, version: str) -> TailState:
    (place / "lines@host.json").write_bytes((GOLDEN / version).read_bytes())
    return TailState.opened(place, "lines@host", "lines")


def test_the_state_of_the_first_release_is_read(tmp_path: Path) -> None:
    state = opened(tmp_path, "tail-state.v1.json")
    done, live = replace(DONE, born_ns=0), replace(LIVE, born_ns=0)
    assert state.entries == {done.key: done, live.key: live}
    assert (state.number, state.looked_s) == (6, 1795000001.5)
    state.decide(7)
    assert state.entries[live.key] == replace(live, position=2060)
    state.close()


def test_todays_state_is_read_and_written_byte_for_byte(tmp_path: Path) -> None:
    state = opened(tmp_path, "tail-state.v2.json")
    assert state.entries == {DONE.key: DONE, LIVE.key: LIVE}
    assert state.pending == {DONE.key: DONE, LIVE.key: replace(LIVE, position=2060)}
    state.begin(state.pending, 0.0)
    state.close()
    written = (tmp_path / "lines@host.json").read_bytes()
    assert written == (GOLDEN / "tail-state.v2.json").read_bytes()


def test_a_state_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    text = (GOLDEN / "tail-state.v2.json").read_text().replace('"format":2', '"format":3')
    (tmp_path / "lines@host.json").write_text(text)
    with pytest.raises(UserError, match=r"is of a newer strata \(format 3, not 2\); use that one"):
        TailState.opened(tmp_path, "lines@host", "lines")


def test_a_path_that_is_no_utf_8_is_kept(tmp_path: Path) -> None:
    odd = replace(LIVE, path="/var/log/\udcff.log")
    state = TailState.opened(tmp_path, "lines@host", "lines")
    state.begin({FileKey(*odd.key): odd}, 1.0)
    state.commit(1.0)
    state.close()
    again = TailState.opened(tmp_path, "lines@host", "lines")
    assert again.entries == {odd.key: odd}
    again.close()
