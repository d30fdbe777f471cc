"""Each store with a certificate outside its dates, or near its end, is one problem."""

import pytest

from stratalog.broker.network.certificate_dates import SOON_S, problems
from stratalog.ports import Certificate

NOW_S = 1_000_000_000.0
DAY_S = 86_400


def own(begins_s: float, ends_s: float) -> Certificate:
    return Certificate("ssl.keystore", "/k.pem", NOW_S + begins_s, NOW_S + ends_s)


def trusted(begins_s: float, ends_s: float, location: str = "/t.pem") -> Certificate:
    return Certificate("ssl.truststore", location, NOW_S + begins_s, NOW_S + ends_s)


@pytest.mark.parametrize(
    ("begins_s", "ends_s", "problem"),
    [
        (-DAY_S, SOON_S, ""),
        (0, SOON_S, ""),
        (-DAY_S, SOON_S - 1, "expires in 14 days"),
        (-DAY_S, 3 * DAY_S, "expires in 3 days"),
        (-DAY_S, 0, "expires in 0 days"),
        (-DAY_S, -1, "has expired"),
        (1, 100 * DAY_S, "is not valid yet"),
    ],
)
def test_what_is_wrong_with_a_certificate(begins_s: float, ends_s: float, problem: str) -> None:
    found = [one.problem for one in problems([own(begins_s, ends_s)], NOW_S)]
    assert found == ([f"the certificate {problem}"] if problem else [])


def test_a_problem_has_file_dates_and_remedy() -> None:
    ((file, _, begins, ends, remedy),) = problems([own(-DAY_S, -1)], NOW_S)
    assert (file, begins, ends) == (
        "/k.pem",
        "2001-09-08T01:46:40+00:00",
        "2001-09-09T01:46:39+00:00",
    )
    assert remedy == "renew it"
    (early,) = problems([own(1, DAY_S * 100)], NOW_S)
    assert "clock" in early.remedy


def test_each_store_has_one_problem_at_most() -> None:
    well, late, later = trusted(-9, 99 * DAY_S), trusted(-9, -2), trusted(-9, -3)
    found = problems([own(-9, -1), well, late, later, trusted(-9, 9, location="")], NOW_S)
    assert [(one.file, one.problem) for one in found] == [
        ("/k.pem", "the certificate has expired"),
        ("/t.pem", "certificate 3 of 3 has expired"),
        ("ssl.truststore.certificates", "the certificate expires in 0 days"),
    ]
    assert "remove it from the file" in found[1].remedy
    assert problems([], NOW_S) == []
