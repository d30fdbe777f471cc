"""Goal: brokers register, heartbeat and unregister by Kafka's rules. Method: the real controller on a log in memory.

The golden stories of `tests/golden/brokers` test the effects on partitions; this module tests the refusals.
"""

import pytest
from msgspec.structs import replace
from tests.unit.quorum.metadata_log import MetadataLog, started

from stratalog.errors import ErrorCode, Rejected
from stratalog.metadata.image import DIRECTORY_LOST, FeatureRange
from stratalog.quorum.brokers import BrokerHeartbeat, BrokerRegistration
from stratalog.quorum.controller import Controller
from stratalog.quorum.features import SUPPORTED_FEATURES


def refusal(call, *args):
    with pytest.raises(Rejected) as refused:
        call(*args)
    return refused.value.code


def registration(log: MetadataLog, broker_id=1, **changes):
    one = BrokerRegistration(broker_id, log.entropy.uuid(), (), None, (log.entropy.uuid(),))
    return replace(one, **changes)


def refused_registration(log, asked):
    return refusal(log.controller.register_broker, asked, log.now_ms + 60_000)


def test_a_new_incarnation_gets_a_higher_epoch_and_starts_fenced():
    log = started()
    first = log.image.brokers[1]
    epoch = log.broker(1, rack="r2", fenced=True)
    assert epoch > first.epoch
    assert (log.image.brokers[1].fenced, log.image.brokers[1].rack) == (True, "r2")


def test_a_second_request_of_an_incarnation_amends_the_registration():
    log = started()
    asked = registration(log)
    log.now_ms += 60_000
    epoch = log.run(log.controller.register_broker(asked, log.now_ms))
    log.heartbeat(1)
    again = log.controller.register_broker(asked, log.now_ms)
    assert (list(again.records), again.answer) == ([], epoch), (
        "the same registration must write no record"
    )
    assert log.run(log.controller.register_broker(replace(asked, rack="r"), log.now_ms)) == epoch
    assert (log.image.brokers[1].rack, log.image.brokers[1].fenced) == ("r", False)


def test_two_brokers_with_one_id_do_not_both_register():
    log = started()
    other = registration(log)
    assert refusal(log.controller.register_broker, other, log.now_ms + 9_000) is (
        ErrorCode.duplicate_broker_registration
    )
    log.run(log.controller.register_broker(other, log.now_ms + 9_001))


def test_an_incarnation_from_before_this_process_has_no_session():
    log = started()
    log.controller.start_sessions(1, log.now_ms)
    log.run(log.controller.register_broker(registration(log), log.now_ms))


@pytest.mark.parametrize("directories", [(), "reserved", "twice", "of another"])
def test_wrong_directories_are_refused(directories):
    log = started()
    mine = log.image.brokers[1].directories
    given = {"reserved": (DIRECTORY_LOST,), "twice": mine * 2, "of another": mine}
    asked = registration(log, 2, directories=given.get(directories, ()))
    assert refused_registration(log, asked) is ErrorCode.invalid_registration
    log.now_ms += 60_000
    log.run(log.controller.register_broker(replace(asked, id=1, directories=mine), log.now_ms))


def test_a_broker_must_support_the_clusters_features():
    log = started()
    old = registration(log, features=(FeatureRange("metadata.version", 7, 29),))
    assert refused_registration(log, old) is ErrorCode.unsupported_version
    none = registration(log, features=())
    assert refused_registration(log, none) is ErrorCode.unsupported_version
    eligible = FeatureRange("eligible.leader.replicas.version", 0, 1)
    without_version = registration(log, features=(eligible,))
    assert refused_registration(log, without_version) is ErrorCode.invalid_registration
    needs = (*SUPPORTED_FEATURES, FeatureRange("group.version", 1, 1))
    assert refused_registration(log, registration(log, features=needs)) is (
        ErrorCode.unsupported_version
    )


def test_requests_of_an_earlier_incarnation_are_refused():
    log = started()
    stale = BrokerHeartbeat(1, log.image.brokers[1].epoch, log.image.offset)
    log.broker(1, fenced=True)
    controller = log.controller
    assert refusal(controller.heartbeat, stale, 0) is ErrorCode.stale_broker_epoch
    assert refusal(controller.allocate_producer_ids, 1, stale.broker_epoch) is (
        ErrorCode.stale_broker_epoch
    )
    unknown = replace(stale, broker_id=2)
    assert refusal(controller.heartbeat, unknown, 0) is ErrorCode.stale_broker_epoch
    assert refusal(controller.unregister_broker, 2) is ErrorCode.broker_id_not_registered


def test_unfencing_twice_writes_one_record():
    log = started()
    before = log.image
    assert not log.heartbeat(1).is_fenced
    assert log.image is before


def test_a_reloaded_controller_waits_until_a_broker_has_seen_its_registration():
    log = started()
    log.broker(2, fenced=True)
    registered_at = log.image.offset
    epoch = log.image.brokers[2].epoch
    reloaded = Controller(image=log.replayed().image())
    behind = reloaded.heartbeat(BrokerHeartbeat(2, epoch, registered_at - 1), 0)
    assert (behind.answer.is_caught_up, behind.answer.is_fenced) == (False, True)
    seen = reloaded.heartbeat(BrokerHeartbeat(2, epoch, registered_at), 0)
    assert (seen.answer.is_caught_up, seen.answer.is_fenced) == (True, False)
