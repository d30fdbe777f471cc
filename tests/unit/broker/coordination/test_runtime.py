"""A state machine on its log: whose error it is, how long a caller waits, and what a fall leaves."""

import asyncio
import traceback
from collections import deque
from types import SimpleNamespace

import pytest
from tests.sim.loop import run

from stratalog.broker.coordination.runtime import Runtime
from stratalog.errors import ErrorCode, Rejected, Unavailable
from stratalog.statemachine import Decision
from stratalog.wire.records import Record, build_batch


class Log:
    """A log whose commits and refusals the test triggers."""

    name = "log-0"

    def __init__(self):
        self.log = SimpleNamespace(next_offset=0)
        self.uncommitted = deque()
        self.refusal = None

    def append(self, _batch, header, _wall_ms, then, **_options):
        if self.refusal is not None:
            raise self.refusal
        base = self.log.next_offset
        self.log.next_offset += header.record_count
        self.uncommitted.append(then)
        return SimpleNamespace(base_offset=base)

    def commit(self):
        self.uncommitted.popleft()(None)


class Machine:
    lost = ErrorCode.not_coordinator
    flush = False

    def __init__(self):
        self.applied = []
        self.published = []

    def apply(self, _base_offset, records):
        if "bug" in records:
            raise ZeroDivisionError("a bug")
        self.applied += records
        return records

    def publish(self, change):
        self.published += change

    def encode(self, records, wall_ms):
        return build_batch(Record(0, wall_ms, None, one.encode()) for one in records)

    def bytes_of(self, _records):
        return 0


class Bench:
    def __init__(self, **options):
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(
            steady_ms=lambda: round(loop.time() * 1000), now_ms=lambda: round(loop.time() * 1000)
        )
        self.log, self.machine, self.falls = Log(), Machine(), []
        self.runtime = Runtime(self.log, clock, self.machine, **options)

    def write(self, record, **options):
        return self.runtime.submit(lambda _now: Decision((record,), record), **options)

    def read(self):
        return self.runtime.submit(lambda _now: Decision((), len(self.machine.applied)))


async def failure(future):
    with pytest.raises(BaseException) as caught:
        await future
    return caught.value


def story(play, **options):
    async def whole():
        await play(Bench(**options))

    run(whole())


@pytest.mark.parametrize("cause", ["refused", "a bug", "resigned", "not committed"])
def test_each_caller_of_a_fallen_machine_gets_an_error_of_its_own(cause):
    async def play(bench):
        waits = [bench.write("first"), bench.write("second"), bench.read()]
        if cause == "refused":
            bench.log.refusal = Rejected(ErrorCode.kafka_storage_error, "refused")
            await asyncio.sleep(0)
        elif cause == "a bug":
            assert isinstance(await failure(bench.write("bug")), ZeroDivisionError)
        elif cause == "resigned":
            bench.runtime.resign()
        else:
            await asyncio.sleep(0)
            bench.log.uncommitted.popleft()(Rejected(ErrorCode.not_leader_or_follower, "gone"))
        errors = [await failure(one) for one in waits]
        errors += [await failure(bench.read()) for _ in range(20)]
        assert len({id(one) for one in errors}) == len(errors)
        depths = {len(traceback.extract_tb(one.__traceback__)) for one in errors}
        assert len(depths) == 1, "a shared error has the frames of each raise before"
        if cause != "a bug":
            assert {one.code for one in errors} == {ErrorCode.not_coordinator}
        else:
            assert all("ZeroDivisionError" in str(one) for one in errors)

    story(play)


def test_a_machine_that_is_loaded_again_refuses_all_but_the_bugs_own_caller():
    falls = []

    async def play(bench):
        wait = bench.write("first")
        assert isinstance(await failure(bench.write("bug")), ZeroDivisionError)
        codes = [(await failure(one)).code for one in (wait, bench.read())]
        assert codes == [ErrorCode.not_coordinator] * 2
        assert [type(one) for one in falls] == [ZeroDivisionError]

    story(play, fell=falls.append)


def test_a_resignation_is_no_fall():
    async def play(bench):
        wait = bench.write("first")
        bench.runtime.resign()
        assert (await failure(wait)).code is ErrorCode.not_coordinator

    story(play, fell=lambda _error: pytest.fail("nothing to load again"))


def test_the_reason_of_a_fall_keeps_its_kind_where_nothing_loads_again():
    async def play(bench):
        bench.log.refusal = Unavailable("no answer")
        assert isinstance(await failure(bench.write("first")), Unavailable)
        assert isinstance(await failure(bench.read()), Unavailable)

    story(play)


def test_a_caller_waits_no_longer_than_its_limit_and_the_decision_goes_on():
    async def play(bench):
        loop = asyncio.get_running_loop()
        began = loop.time()
        first, read = bench.write("first"), bench.read()
        await asyncio.sleep(1)
        second, unlimited = bench.write("second"), bench.write("marker", limited=False)
        for wait, waited_s in ((first, 2), (read, 2), (second, 3)):
            error = await failure(wait)
            assert error.code is ErrorCode.coordinator_not_available
            assert loop.time() - began == pytest.approx(waited_s, abs=0.01)
        assert not bench.machine.published
        bench.log.commit()
        bench.log.commit()
        assert await unlimited == "marker"
        assert bench.machine.published == ["first", "second", "marker"]
        third = bench.write("third")
        await asyncio.sleep(1.9)
        bench.log.commit()
        assert await third == "third"
        await asyncio.sleep(10)

    story(play, limit_ms=2_000)


def test_a_commit_in_time_leaves_nothing_to_watch():
    async def play(bench):
        for number in range(100):
            wait = bench.write(str(number))
            await asyncio.sleep(0)
            bench.log.commit()
            assert await wait == str(number)
        assert not bench.runtime._limited
        await asyncio.sleep(3)
        assert bench.runtime._timer is None

    story(play, limit_ms=2_000)
