"""Several brokers register one topic: a request of a broker that died takes effect after those of the others.

Method: three real nodes in virtual time share a bucket.
"""

from tests.faulty_store import Fault
from tests.sim.test_tier_in_cluster import TIERED, Tale, story

from stratalog.client.admin import create_partitions
from stratalog.client.calls import NewTopic
from stratalog.errors import ErrorCode
from stratalog.tier.checking.verify import verify
from stratalog.tier.reading.reader import open_bucket

LEADERS = (2, 1, 3)


def test_a_late_request_of_a_dead_broker_hides_no_partition() -> None:
    async def tell(tale: Tale) -> None:
        tale.store.fault = lambda call, path: (
            Fault.LATE if "put" in call and "/cluster/topics/" in path else None
        )
        client = await tale.client()
        topic = NewTopic("t", assignments={0: [LEADERS[0]]}, configs=TIERED)
        (created,) = await client.create_topics([topic])
        assert created.error is ErrorCode.none, created
        await tale.cluster.until(lambda: tale.store.failures > 0, "a request without an answer")
        await tale.cluster.machines[LEADERS[0]].kill()
        tale.store.fault = lambda _call, _path: None
        await tale.forget_client()
        client = await tale.client()
        await client.on_controller(create_partitions("t", len(LEADERS)))
        bucket = open_bucket(tale.store)

        def partitions() -> int:
            return sum(found.partitions for found in bucket.topics())

        def archived() -> int:
            return sum(len(bucket.manifests(found)) for found in bucket.topics())

        await tale.cluster.until(lambda: partitions() == len(LEADERS), "all are registered", 60)
        tale.store.arrive()
        assert partitions() == len(LEADERS), "the dead broker's entry counts"
        await tale.cluster.machines[LEADERS[0]].start()
        await tale.cluster.until(lambda: archived() == len(LEADERS), "each leader archives", 60)
        assert partitions() == len(LEADERS)
        assert verify(tale.store, now_ms=tale.cluster.world.clock.now_ms()) == []

    story(tell)
