"""Each checker finds its anomaly in a history that has it, and none in a sound one."""

import pytest
from tests.txn.anomalies import ALLOWED, FORBIDDEN, At, End, Operation, first_anomaly

A, B, C = At(0, 0, b"a"), At(0, 1, b"b"), At(1, 0, b"c")
SOUND = [
    Operation("p", [A, C], [], End.COMMITTED),
    Operation("q", [B], [A], End.COMMITTED),
    Operation("r", [], [A, B], End.COMMITTED),
    Operation("r", [], [C], End.COMMITTED),
    Operation("late", [], [B], End.COMMITTED),
    Operation("x", [At(0, 3, b"x")], [], End.ABORTED),
    Operation("y", [At(0, None, b"y")], [], End.UNKNOWN),
]
HISTORIES = {
    "aborted read": [*SOUND, Operation("s", [], [At(0, 3, b"x")], End.COMMITTED)],
    "lost write": [
        *SOUND,
        Operation("s", [At(0, 4, b"lost")], [], End.COMMITTED),
        Operation("s", [At(0, 5, b"d")], [], End.COMMITTED),
        Operation("r", [], [At(0, 5, b"d")], End.COMMITTED),
    ],
    "G1c": [
        Operation("p", [A], [C], End.COMMITTED),
        Operation("q", [C], [A], End.COMMITTED),
    ],
    "duplicate": [*SOUND, Operation("s", [], [At(0, 7, b"a")], End.COMMITTED)],
    "poll skip": [*SOUND, Operation("s", [], [A, At(0, 9, b"z")], End.COMMITTED)],
    "nonmonotonic poll": [*SOUND, Operation("r", [], [B], End.COMMITTED)],
    "nonmonotonic send": [
        *SOUND,
        Operation("s", [At(0, 5, b"d")], [], End.COMMITTED),
        Operation("s", [At(0, 4, b"e")], [], End.COMMITTED),
    ],
    "inconsistent offsets": [*SOUND, Operation("s", [], [At(1, 0, b"other")], End.COMMITTED)],
}


def test_a_sound_history_has_no_anomaly() -> None:
    assert first_anomaly(SOUND) is None


@pytest.mark.parametrize("name", FORBIDDEN)
def test_an_anomaly_is_found_by_its_checker(name: str) -> None:
    found = {one for one, checker in FORBIDDEN.items() if list(checker(HISTORIES[name]))}
    assert name in found
    assert found <= {name, "poll skip"}, "another checker has found it, too"


def test_a_write_cycle_is_seen_and_allowed() -> None:
    first = Operation("p", [A, At(1, 1, b"d")], [], End.COMMITTED)
    second = Operation("q", [B, C], [], End.COMMITTED)
    assert list(ALLOWED["G0"]([first, second]))
    assert first_anomaly([first, second]) is None
