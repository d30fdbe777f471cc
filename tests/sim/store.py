"""A bucket of a simulation that fails by chance.

In: a store, entropy. Out: the same store. `down` refuses every call, `refused(operation, path)` those for which it
holds. `trouble` is the probability of a fault, and `kinds` has the possible faults: by default the call had no effect,
or its answer was lost. Late effects follow within half a second.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random

from tests.faulty_store import FITTING, Fault
from tests.faulty_store import FaultyStore as ToldStore

from stratalog.ports import ObjectStore

_LATE_S = 0.5


class FaultyStore(ToldStore):
    """See the module."""

    def __init__(self, store: ObjectStore, chance: Random) -> None:
        super().__init__(store, self._draw)
        self.down = False
        self.refused: Callable[[str, str], bool] = lambda _operation, _path: False
        self.trouble = 0.0
        self.kinds: Sequence[Fault] = (Fault.BEFORE, Fault.AFTER)
        self._chance = chance

    def _draw(self, operation: str, path: str) -> Fault | None:
        if self.down or self.refused(operation, path):
            return Fault.BEFORE
        if self._chance.random() >= self.trouble:
            return None
        fitting = [kind for kind in self.kinds if operation in FITTING[kind]]
        fault = self._chance.choice(fitting) if fitting else None
        if fault is Fault.LATE:
            delay_s = self._chance.uniform(0, _LATE_S)
            # The request is in the network: it arrives also if its sender has died.
            asyncio.get_running_loop().call_later(delay_s, self.arrive, context=Context())
        return fault
