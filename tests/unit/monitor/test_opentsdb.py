"""Prometheus' text as OpenTSDB's points: names and values that OpenTSDB accepts, one point for each number."""

import json

from stratalog.monitor.opentsdb import Points, is_tag

SCRAPE = """# HELP a_total Help.
# TYPE a_total counter
a_total{topic="t",partition="0"} 7
plain 1.5e-05
quoted{group="a \\"b\\" \\\\ {x=\\"1\\"}, c\\nd",empty=""} 3
bucket{le="+Inf"} 2
headroom{group="g"} +Inf
other NaN
"""


def test_lines_are_what_opentsdb_reads() -> None:
    points = Points({"instance": "h:9404"}, as_json=False)
    assert points.of(SCRAPE.split("\n"), 1_700_000_000) == [
        "put a_total 1700000000 7 topic=t partition=0 instance=h_9404\n",
        "put plain 1700000000 1.5e-05 instance=h_9404\n",
        "put quoted 1700000000 3 group=a__b_____x__1____c_d instance=h_9404\n",
        "put bucket 1700000000 2 le=_Inf instance=h_9404\n",
    ]
    assert points.not_numbers == 2


def test_json_has_the_same_points() -> None:
    points = Points({"instance": "h"}, as_json=True)
    found = json.loads(f"[{','.join(points.of(SCRAPE.split(chr(10)), 5))}]")
    assert found[0] == {
        "metric": "a_total",
        "timestamp": 5,
        "value": 7,
        "tags": {"topic": "t", "partition": "0", "instance": "h"},
    }
    assert [one["value"] for one in found] == [7, 1.5e-05, 3, 2]


def test_series_that_are_gone_are_forgotten() -> None:
    points = Points({}, as_json=False)
    for number in range(100):
        points.of([f'a{{n="{number}"}} 1'], number)
    assert len(points._series) == 1


def test_a_tag_has_letters_digits_and_four_marks() -> None:
    assert is_tag("Ab-1_./")
    assert not any(map(is_tag, ("", "a b", "a=b", "a:b", "a\n")))
