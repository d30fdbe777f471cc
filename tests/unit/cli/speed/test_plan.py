"""`strata plan`: few inputs, estimates with their reasons, and one line for a wrong input."""

import json

import pytest
from typer.testing import CliRunner

from stratalog.cli.app import app
from stratalog.cli.shared.quantities import parse_bytes, parse_duration_s, quantity_text
from stratalog.errors import UserError


def run(*words):
    return CliRunner().invoke(app, ["plan", *words])


def estimates(*words):
    done = run(*words, "--json")
    assert done.exit_code == 0, done.output
    return {estimate["name"]: estimate for estimate in json.loads(done.stdout)["estimates"]}


def test_one_input_is_enough():
    done = run("--ingress", "1GB/s")
    assert done.exit_code == 0, done.output
    assert "5 GB/s" in done.stdout
    assert "3 replicas + 1 to the tier + 1 groups = 5" in done.stdout
    assert "2 on protected volumes" in done.stdout


def test_json_has_plain_values_with_units_and_reasons():
    found = estimates("--ingress", "100MB/s", "--retention", "7d")
    assert found["bucket capacity"]["value"] == pytest.approx(60.48e12)
    assert found["bucket capacity"]["unit"] == "bytes"
    assert "60.48 TB kept" in found["bucket capacity"]["because"]


def test_replication_is_compared_with_reasons_and_with_given_assumptions():
    """Two replicas on volumes that store 1.5 raw bytes for each byte; one of three brokers is down for an hour."""
    words = ("--ingress", "300MB/s", "--topic", "name=t,tiered=no", "--retention", "1d")
    done = run(*words, "--volume-overhead", "1.5", "--downtime", "1h", "--json")
    lines = {line["name"]: line for line in json.loads(done.stdout)["replication"]}
    kept = 300e6 * 86_400
    raw = lines["raw local capacity"]
    assert (raw["drives"], raw["volumes"]) == (3 * kept, 2 * kept * 1.5)
    assert "1.5 raw bytes" in raw["because"]
    replaced = lines["fetched by a replaced broker"]
    assert (replaced["drives"], replaced["volumes"]) == (kept, 2 * 300e6 * 3600 / 3)
    assert "3,600 s" in replaced["because"]
    assert all(line["because"] for line in lines.values())
    assert "so as to lose a drive" in run("--ingress", "1GB/s").stdout


def test_topics_have_own_options_and_share_the_others():
    found = estimates(
        "--consumer-groups",
        "2",
        "--topic",
        "name=orders,ingress=3GB/s,groups=1",
        "--topic",
        "name={0},ingress=1GB/s,groups=5,tiered=no",
    )
    assert found["network multiplier"]["value"] == (3 * 5 + 8) / 4
    assert "{0}: 3 replicas + 0 to the tier" in found["network multiplier"]["because"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "--ingress is missing"),
        (("--ingress", "fast"), "--ingress: 'fast' is no number of bytes; accepted: 500000"),
        (("--ingress", "0"), "--ingress: '0' is less than a byte; accepted: 1 or more"),
        (("--ingress", "-1MB"), "'-1MB'"),
        (("--ingress", "1GB", "--retention", "0s"), "--retention: '0s' keeps nothing; accepted:"),
        (
            ("--ingress", "1GB", "--retention", "soon"),
            "--retention: 'soon' is no time; accepted: 7d",
        ),
        (("--ingress", "1GB", "--segment", "big"), "--segment: 'big' is no number of bytes"),
        (("--ingress", "1GB", "--hotset", "hot"), "--hotset: 'hot' is no time"),
        (("--topic", "ingress=fast"), "--topic ingress: 'fast' is no number of bytes"),
        (("--ingress", "1GB", "--replication-factor", "4"), "replication factor of 4"),
        (("--ingress", "1GB", "--topic", "colour=red"), "'colour=red'"),
        (("--ingress", "1GB", "--topic", "rf=0"), "--topic rf: '0' is no whole number"),
        (
            ("--ingress", "1GB", "--topic", "tiered=maybe"),
            "--topic tiered: 'maybe' is not accepted",
        ),
        (
            ("--ingress", "1GB", "--local-price", "nan"),
            "--local-price: nan is not accepted; accepted: 0",
        ),
        (("--ingress", "1GB", "--volume-overhead", "0.5"), "--volume-overhead"),
        (("--ingress", "1GB", "--volume-overhead", "nan"), "--volume-overhead"),
        (("--ingress", "1GB", "--downtime", "soon"), "--downtime"),
        (("--ingress", "1GB", "--throttle", "9" * 400), "--throttle"),
    ],
)
def test_malformed_input_is_one_line(words, named):
    done = run(*words)
    assert isinstance(done.exception, UserError)  # `strata` prints it and exits with 2
    assert named in str(done.exception)
    assert "\n" not in str(done.exception)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.5kB", 1500), ("100MB/s", 10**8), ("1 GiB", 1 << 30), ("2T", 2e12)],
)
def test_sizes_are_read_with_their_units(text, value):
    assert parse_bytes(text, "x") == value


@pytest.mark.parametrize(
    ("text", "value"), [("7d", 604800), ("500ms", 0.5), ("0s", 0), ("10y", 315360000)]
)
def test_durations_are_read_with_their_units(text, value):
    assert parse_duration_s(text, "x") == value


@pytest.mark.parametrize("text", ["", "d", "7", "7 parsecs", "1e9s", "-1d"])
def test_a_malformed_duration_is_refused(text):
    with pytest.raises(UserError, match="x: "):
        parse_duration_s(text, "x")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (60.48e12, "bytes", "60.48 TB"),
        (999.9e9, "bytes", "999.9 GB"),
        (0, "bytes", "0 B"),
        (10_000, "s", "10,000 s (2.78 h)"),
        (4.5, "x", "4.5x"),
        (25, "%", "+25 %"),
    ],
)
def test_quantities_are_rounded_for_people(value, unit, text):
    assert quantity_text(value, unit) == text
