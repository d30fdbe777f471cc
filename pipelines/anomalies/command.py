"""The command line of `anomalies.py`.

In: a command line. Out: options, and the rule among them. Never here: Spark, files.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from baseline import Rule


def parse_arguments(arguments: Sequence[str]) -> Namespace:
    """Parse the options; end the program with one line for wrong ones."""
    parser = ArgumentParser(
        prog="anomalies.py", description="Hours of clients and paths that are out of the ordinary."
    )
    parser.add_argument("--bootstrap-server", metavar="HOST:PORT", help="where the broker is")
    parser.add_argument("--tier-url", metavar="URL", help="where the bucket is")
    parser.add_argument("--topic", default="access_log")
    parser.add_argument("--state", type=Path, default=Path(".state/anomalies"), metavar="DIR")
    parser.add_argument("--every", metavar="INTERVAL", help="never end: look this often ('10 s')")
    parser.add_argument("--history", action="store_true", help="print all flags of all of history")
    parser.add_argument("--delay", default="1 hour", help="how late a line may come")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--memory", default="1g", help="heap of Spark's driver")
    for field in fields(Rule):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=field.type, default=field.default, help="see baseline.py")
    options = parser.parse_args(arguments)
    if not (options.bootstrap_server or options.tier_url):
        parser.error("one of --bootstrap-server and --tier-url is needed, or both")
    return options


def rule(options: Namespace) -> Rule:
    """Return the rule of the options."""
    return Rule(**{field.name: getattr(options, field.name) for field in fields(Rule)})
