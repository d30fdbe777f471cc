"""`python -m tests.cluster.second_opinion --seeds 20`: Porcupine judges the histories that our own checker judged.

In: seeds; Go, with which Porcupine (a Go module) is fetched and built once into $STRATALOG_CACHE. Out: a line for each
seed with both verdicts; exit code 1 where they differ, or where neither finds an order. `--damaged` changes one answer
in each history, so that both must refuse most of them.

Porcupine searches for an order as `linear.py` does, with other code by other authors.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random

import structlog
from tests.cluster.linear import Operation, is_linearizable, presence
from tests.cluster.registers import HistoryOf
from tests.cluster.run import finished
from tests.compat.tools import fetching

SOURCE = Path(__file__).parent / "porcupine"
BUILD_TIMEOUT_S = 300
CHECK_TIMEOUT_S = 600


class Unbuilt(Exception):
    """Porcupine is not there, and cannot be built."""


def program() -> Path:
    """Build Porcupine's program once; return its path. Raises Unbuilt."""
    with fetching("porcupine-v1.3.1-1") as built:
        if built.is_file():
            return built
        go = shutil.which("go")
        if go is None:
            raise Unbuilt("Go is not installed: put `go` on PATH, version 1.18 or newer")
        with tempfile.TemporaryDirectory(prefix="stratalog-build-", dir=built.parent) as scratch:
            for file in SOURCE.iterdir():
                shutil.copy(file, scratch)
            try:
                done = subprocess.run(
                    [go, "build", "-o", "program", "."],
                    cwd=scratch,
                    env=os.environ | {"GOFLAGS": "-mod=readonly"},
                    capture_output=True,
                    text=True,
                    timeout=BUILD_TIMEOUT_S,
                    stdin=subprocess.DEVNULL,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise Unbuilt(f"go build did not end within {BUILD_TIMEOUT_S} s") from error
            if done.returncode != 0:
                raise Unbuilt(f"go build failed: {done.stderr.strip()[-300:]}")
            Path(scratch, "program").rename(built)
        return built


def verdicts(porcupine: Path, histories: Sequence[HistoryOf]) -> dict[str, str]:
    """Return Porcupine's verdict on each history: Ok, Illegal, or Unknown after a minute."""
    objects = [
        {
            "Name": one.name,
            "Rule": one.rule.__name__,
            "Initial": str(one.initial),
            "Operations": [_as_json(operation) for operation in one.operations],
        }
        for one in histories
    ]
    done = subprocess.run(
        [porcupine],
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        timeout=CHECK_TIMEOUT_S,
        check=True,
    )
    lines = (line.partition("\t") for line in done.stdout.splitlines())
    return {name: verdict for name, _, verdict in lines}


def _as_json(one: Operation) -> dict[str, object]:
    return {
        "Kind": one.kind,
        "Value": str(one.value),
        "Called": round(one.called * 1e6),
        "Returned": -1 if one.returned == inf else round(one.returned * 1e6),
    }


def own_verdicts(histories: Sequence[HistoryOf]) -> dict[str, str]:
    return {
        one.name: "Ok" if is_linearizable(one.operations, one.rule, one.initial) else "Illegal"
        for one in histories
    }


def damaged(one: HistoryOf, chance: Random) -> HistoryOf:
    """Return the history with another answer to one of its reads; the same one where nothing was read."""
    reads = [at for at, operation in enumerate(one.operations) if operation.kind == "read"]
    if not reads:
        return one
    at = chance.choice(reads)
    read = one.operations[at]
    value = (not read.value) if one.rule is presence else "never written"
    operations = [*one.operations]
    operations[at] = read._replace(value=value)
    return one._replace(operations=operations)


def differ(porcupine: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
    return [
        f"{name}: Porcupine {porcupine[name]}, ours {own[name]}"
        for name in own
        if porcupine[name] not in (own[name], "Unknown")
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.second_opinion")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--damaged", action="store_true", help="change an answer in each history")
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        porcupine = program()
    except Unbuilt as error:
        print(f"cannot ask Porcupine: {error}", file=sys.stderr)
        return 2
    problems = 0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        histories = finished(seed).histories()
        if chosen.damaged:
            histories = [damaged(one, Random(f"{seed} {one.name}")) for one in histories]
        theirs, ours = verdicts(porcupine, histories), own_verdicts(histories)
        found = differ(theirs, ours)
        if not chosen.damaged:
            found += [
                f"{name}: no order" for name, verdict in theirs.items() if verdict == "Illegal"
            ]
        problems += len(found)
        count = sum(len(one.operations) for one in histories)
        said = ", ".join(f"{name} {verdict}" for name, verdict in theirs.items())
        print(
            f"seed {seed}: {count} operations; {said}; {'; '.join(found) or 'agreed'}", flush=True
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
