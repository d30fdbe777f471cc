"""Settings of Apache Kafka 4.3 that have no effect here, each with the reason.

In: nothing. Out: `INERT_SETTINGS`, a part of `broker_settings.BROKER_SETTINGS`. Data only.

A properties file written for Kafka sets many of them. The broker accepts each with a warning, keeps it, and describes
it as Kafka does. `tests/compat/test_settings.py` compares names, types, defaults and modes with Kafka's own tables. A
name leaves this list when the broker honours it.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from stratalog.config.kinds import Dynamic, Kind, Setting, Value

__all__ = ["INERT_SETTINGS", "KAFKA_ONLY_PREFIXES"]

# A line is a name, a type, Kafka's default (- for null), which brokers a new value may be set for while they run
# (`every`, `own`), and `unlisted` for a quota, which Kafka describes only where it is set.
_TABLES: Final = {
    "the cleaner reads and writes a mebibyte at a time": """
        log.cleaner.io.buffer.size int 524288 every
    """,
    "transactions are those of Kafka's first protocol": """
        add.partitions.to.txn.retry.backoff.max.ms int 100
        add.partitions.to.txn.retry.backoff.ms int 20
        transaction.remove.expired.transaction.cleanup.interval.ms int 3600000
        transaction.state.log.load.buffer.size int 5242880
    """,
    "OpenSSL decides it here, and ssl.enabled.protocols the versions": """
        ssl.allow.dn.changes boolean false
        ssl.allow.san.changes boolean false
        ssl.engine.factory.class class - own
        ssl.keymanager.algorithm string SunX509 own
        ssl.protocol string TLSv1.3 own
        ssl.provider string - own
        ssl.secure.random.implementation string - own
        ssl.trustmanager.algorithm string PKIX own
    """,
    "it is of GSSAPI or OAUTHBEARER, or of a part of Kafka's in Java": """
        principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder own
        sasl.client.callback.handler.class class -
        sasl.jaas.config password - own
        sasl.kerberos.kinit.cmd string /usr/bin/kinit own
        sasl.kerberos.min.time.before.relogin long 60000 own
        sasl.kerberos.principal.to.local.rules list DEFAULT own
        sasl.kerberos.service.name string - own
        sasl.kerberos.ticket.renew.jitter double 0.05 own
        sasl.kerberos.ticket.renew.window.factor double 0.8 own
        sasl.login.callback.handler.class class -
        sasl.login.class class -
        sasl.login.connect.timeout.ms int -
        sasl.login.read.timeout.ms int -
        sasl.login.refresh.buffer.seconds short 300 own
        sasl.login.refresh.min.period.seconds short 60 own
        sasl.login.refresh.window.factor double 0.8 own
        sasl.login.refresh.window.jitter double 0.05 own
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.oauthbearer.assertion.algorithm string RS256
        sasl.oauthbearer.assertion.claim.aud string -
        sasl.oauthbearer.assertion.claim.exp.seconds int 300
        sasl.oauthbearer.assertion.claim.iss string -
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60
        sasl.oauthbearer.assertion.claim.sub string -
        sasl.oauthbearer.assertion.file string -
        sasl.oauthbearer.assertion.private.key.file string -
        sasl.oauthbearer.assertion.private.key.passphrase password -
        sasl.oauthbearer.assertion.template.file string -
        sasl.oauthbearer.client.credentials.client.id string -
        sasl.oauthbearer.client.credentials.client.secret password -
        sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000
        sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100
        sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
        sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
        sasl.oauthbearer.scope string -
        sasl.oauthbearer.scope.claim.name string scope
        sasl.oauthbearer.token.endpoint.url string -
        sasl.server.callback.handler.class class -
        security.providers string -
    """,
    "consumer groups of the classic protocol are served, no others yet": """
        group.consumer.assignment.interval.ms int 1000 every
        group.consumer.assignors list uniform,range
        group.consumer.heartbeat.interval.ms int 5000
        group.consumer.max.assignment.interval.ms int 15000
        group.consumer.max.heartbeat.interval.ms int 15000
        group.consumer.max.session.timeout.ms int 60000
        group.consumer.max.size int 2147483647
        group.consumer.migration.policy string bidirectional
        group.consumer.min.assignment.interval.ms int 0
        group.consumer.min.heartbeat.interval.ms int 5000
        group.consumer.min.session.timeout.ms int 45000
        group.consumer.session.timeout.ms int 45000
        group.coordinator.rebalance.protocols list classic,consumer,streams
        group.share.assignment.interval.ms int 1000 every
        group.share.assignors list simple
        group.share.delivery.count.limit int 5
        group.share.heartbeat.interval.ms int 5000
        group.share.max.assignment.interval.ms int 15000
        group.share.max.delivery.count.limit int 10
        group.share.max.heartbeat.interval.ms int 15000
        group.share.max.partition.max.record.locks int 4000
        group.share.max.record.lock.duration.ms int 60000
        group.share.max.session.timeout.ms int 60000
        group.share.max.share.sessions int 2000
        group.share.max.size int 200
        group.share.min.assignment.interval.ms int 0
        group.share.min.delivery.count.limit int 2
        group.share.min.heartbeat.interval.ms int 5000
        group.share.min.partition.max.record.locks int 100
        group.share.min.record.lock.duration.ms int 15000
        group.share.min.session.timeout.ms int 45000
        group.share.partition.max.record.locks int 2000
        group.share.record.lock.duration.ms int 30000
        group.share.session.timeout.ms int 45000
        group.streams.assignment.interval.ms int 1000 every
        group.streams.heartbeat.interval.ms int 5000
        group.streams.initial.rebalance.delay.ms int 3000
        group.streams.max.assignment.interval.ms int 15000
        group.streams.max.heartbeat.interval.ms int 15000
        group.streams.max.session.timeout.ms int 60000
        group.streams.max.size int 2147483647
        group.streams.max.standby.replicas int 2
        group.streams.min.assignment.interval.ms int 0
        group.streams.min.heartbeat.interval.ms int 5000
        group.streams.min.session.timeout.ms int 45000
        group.streams.num.standby.replicas int 0
        group.streams.session.timeout.ms int 45000
        share.coordinator.append.linger.ms int -1
        share.coordinator.cached.buffer.max.bytes int 1048588 every
        share.coordinator.load.buffer.size int 5242880
        share.coordinator.snapshot.update.records.per.snapshot int 500
        share.coordinator.state.topic.compression.codec int 0
        share.coordinator.state.topic.min.isr short 2
        share.coordinator.state.topic.num.partitions int 50
        share.coordinator.state.topic.replication.factor short 3
        share.coordinator.state.topic.segment.bytes int 104857600
        share.coordinator.threads int 1
        share.coordinator.write.timeout.ms int 5000
        share.fetch.purgatory.purge.interval.requests int 1000
    """,
    "no class of Java's is loaded: quotas are those of the metadata log": """
        client.quota.callback.class class -
    """,
    "the cluster has no such limits, throttles or choices yet": """
        controller.quorum.append.linger.ms int 25
        controller.quorum.fetch.max.bytes int 1048576
        controller.quorum.fetch.snapshot.max.bytes int 1048576
        early.start.listeners list -
        remote.log.manager.follower.thread.pool.size int 2 every
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
    """,
    "there are no such threads, queues or buffers: one event loop serves, each directory has its own thread": """
        background.threads int 10 every
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        group.coordinator.append.linger.ms int -1
        group.coordinator.background.threads int 2
        group.coordinator.cached.buffer.max.bytes int 1048588 every
        group.coordinator.threads int 4
        num.io.threads int 8 every
        num.network.threads int 3 every
        num.recovery.threads.per.data.dir int 2 every
        num.replica.alter.log.dirs.threads int -
        offsets.load.buffer.size int 5242880
        producer.purgatory.purge.interval.requests int 1000
        queued.max.requests int 500
        remote.log.index.file.cache.total.size.bytes long 1073741824 every
        remote.log.manager.thread.pool.size int 2
    """,
    "it names or tunes a part of Kafka's in Java": """
        alter.config.policy.class.name class -
        config.providers list '' every
        create.topic.policy.class.name class -
        kafka.metrics.polling.interval.secs int 10
        kafka.metrics.reporters list ''
        metric.reporters list org.apache.kafka.common.metrics.JmxReporter every
        metrics.num.samples int 2
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000
        remote.log.metadata.custom.metadata.max.bytes int 128
        remote.log.metadata.manager.class.name string org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
        remote.log.metadata.manager.class.path string -
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string -
        remote.log.storage.manager.class.name string -
        remote.log.storage.manager.class.path string -
        remote.log.storage.manager.impl.prefix string rsm.config.
    """,  # noqa: E501 - a name of Kafka's
    "it is decided here: the metadata log keeps itself short, tier.url is the tier": """
        log.flush.start.offset.checkpoint.interval.ms int 60000
        metadata.log.segment.bytes int 1073741824
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int 500
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        offsets.topic.compression.codec int 0
        remote.log.storage.system.enable boolean false
        socket.listen.backlog.size int 50
    """,
}
_CHANGED: Final = {"every": Dynamic.CLUSTER_WIDE, "own": Dynamic.PER_BROKER}
KAFKA_ONLY_PREFIXES = ("listener.name.", "rlmm.config.", "rsm.config.", "config.providers.")


def _settings() -> Iterator[Setting]:
    for why, lines in _TABLES.items():
        for line in lines.strip().splitlines():
            name, kind, default, *more = line.split()
            setting = Setting(name, Kind[kind.upper()], None, f"No effect here: {why}.", inert=why)
            value: Value = None
            if default != "-":
                value = setting.parse(default.strip("'"))
            mode = _CHANGED[more[0]] if more else Dynamic.READ_ONLY
            yield replace(setting, default=value, dynamic=mode, unlisted="unlisted" in more)


INERT_SETTINGS: Final = tuple(_settings())
