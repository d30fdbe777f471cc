"""`python -m tests.kills --rounds 500`: rounds of kill -9, pauses and stops of real nodes under idempotent producers.

In: how many rounds, a seed, how many nodes. Out: counts; the first record that is lost, moved or repeated. The seed
repeats the faults, not the processes' timing.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.kills.producers import Librdkafka, Verifiable
from tests.kills.rounds import FAULTS_OF, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--on", default="processes", choices=FAULTS_OF, help="what the nodes run on"
    )
    parser.add_argument("--nodes", type=int, default=3, choices=(3, 4, 5))
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    chosen = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("stopped")
    )  # `timeout` must leave nothing behind
    begun = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="stratalog-kills-"))
    print(f"seed {chosen.seed}, data and logs in {place}", flush=True)
    counts = run(
        place, chosen.rounds, chosen.seed, [Librdkafka, Verifiable], chosen.nodes, on=chosen.on
    )
    shutil.rmtree(place)
    print(
        f"{chosen.rounds} rounds in {time.monotonic() - begun:.0f} s, none lost: "
        + ", ".join(f"{name} {count:,}" for name, count in counts.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
