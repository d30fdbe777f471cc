"""Goal: Prometheus accepts our metrics, and the rules in our documentation fire as described.

Method: Debian's `prometheus` package (promtool and the server) against a broker process and docs/monitoring.md. Where
it is not installed it is unpacked beside the other fetched tools.
"""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from tests.broker_process import BrokerProcess, broker_process
from tests.compat.tools import debian_packages
from tests.integration.monitor_scrape import Scrape
from tests.integration.waiting import wait_for

from stratalog import monitor
from stratalog.monitor.metrics import METRICS

TIMEOUT_S = 60
PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"
RULES = Path(monitor.__file__).with_name("stratalog.rules.yml")


def program(name: str) -> str:
    return shutil.which(name) or str(debian_packages("prometheus") / "usr" / "bin" / name)


def promtool(*words: str, stdin: str = "") -> None:
    done = subprocess.run(
        [program("promtool"), *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr.strip(), done.stderr


def block(start: str) -> str:
    """The page's example that begins with `start`."""
    return next(
        text
        for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if text.startswith(start)
    )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    program("promtool")
    place = tmp_path_factory.mktemp("prometheus")
    settings = {"monitor.listener": "127.0.0.1:0", "auto.create.topics.enable": "true"}
    with broker_process(place, **{k.replace(".", "__"): v for k, v in settings.items()}) as running:
        producer = Producer({"bootstrap.servers": running.address, "log_level": 0})
        for _ in range(7):
            producer.produce("counted", b"x")
        assert producer.flush(TIMEOUT_S) == 0
        yield running


def monitor_port(broker: BrokerProcess) -> int:
    return json.loads((broker.directory / "ready.json").read_text())["monitor_port"]


def test_promtool_accepts_the_pages_rules(broker: BrokerProcess) -> None:
    promtool("check", "metrics", stdin=Scrape(monitor_port(broker)).text)


def test_rules_name_existing_metrics() -> None:
    known = {metric.name for metric in METRICS} | {"stratalog_push_points_sent_total"}
    named = set(re.findall(r"stratalog_\w+", PAGE.read_text() + RULES.read_text()))
    assert {name.removesuffix("_bucket") for name in named} <= known
    assert len(re.findall(r"- alert:", RULES.read_text())) == 22


def test_alerts_fire_at_their_condition_and_not_earlier(tmp_path: Path) -> None:
    rules = tmp_path / "stratalog.rules.yml"
    rules.write_text(RULES.read_text())
    promtool("check", "rules", str(rules))
    (tmp_path / "tests.yml").write_text(STORIES)
    promtool("test", "rules", str(tmp_path / "tests.yml"))


STORIES = """
rule_files: [stratalog.rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - series: 'stratalog_group_retention_headroom_seconds{group="slow", topic="t"}'
        values: '18000x60'
      - series: 'stratalog_group_retention_headroom_seconds{group="caught up", topic="t"}'
        values: '+Inf+0x60'
      - series: 'stratalog_ready{instance="i"}'
        values: '1x10 0x50'
      - series: 'stratalog_remote_copy_lag_segments{topic="growing"}'
        values: '0+1x120'
      - series: 'stratalog_remote_copy_lag_segments{topic="catching up"}'
        values: '120-1x120'
      - series: 'stratalog_log_directory_online{directory="/a"}'
        values: '1x120'
      - series: 'stratalog_active_controller{instance="a"}'
        values: '1x20 0x20'
      - series: 'stratalog_active_controller{instance="b"}'
        values: '0x5 1x5 0x30'
      - series: 'stratalog_quorum_epoch{instance="a"}'
        values: '1+0x30 2+1x9'
      - series: 'stratalog_brokers{state="fenced"}'
        values: '0x10 1x20'
      - series: 'stratalog_brokers{state="active"}'
        values: '3x30'
      - series: 'stratalog_cluster_partitions_offline{instance="a"}'
        values: '0x10 4x20'
      - series: 'stratalog_partitions_under_min_isr{instance="a"}'
        values: '0x10 2x20'
      - series: 'stratalog_partitions_under_replicated{instance="a"}'
        values: '0x10 7x20'
      - series: 'stratalog_leader_elections_total{kind="unclean"}'
        values: '0x10 3x50'
      - series: 'stratalog_leader_elections_total{kind="in_sync"}'
        values: '0+9x60'
      - series: 'stratalog_cluster_partitions_not_preferred{instance="a"}'
        values: '0x10 6x50'
      - series: 'stratalog_isr_shrinks_total{instance="flapping"}'
        values: '0+1x60'
      - series: 'stratalog_isr_expansions_total{instance="flapping"}'
        values: '0+1x60'
      - series: 'stratalog_isr_shrinks_total{instance="one broker died"}'
        values: '0x10 50x50'
      - series: 'stratalog_isr_expansions_total{instance="one broker died"}'
        values: '0x60'
      - series: 'stratalog_transaction_oldest_open_seconds{instance="slow"}'
        values: '0+60x60'
      - series: 'stratalog_transaction_oldest_open_seconds{instance="at the time-out"}'
        values: '0+60x15 0x45'
      - series: 'stratalog_partitions_with_late_transactions{instance="a"}'
        values: '0x10 3x20'
      - series: 'stratalog_quorum_state{instance="a", state="candidate"}'
        values: '0 1 0x18 1x20'
      - series: 'stratalog_quorum_state{instance="a", state="follower"}'
        values: '1 0 1x18 0x20'
      - series: 'stratalog_replica_lag_max_records{instance="slow"}'
        values: '0x10 20000+1000x30'
      - series: 'stratalog_replica_lag_max_records{instance="in bursts"}'
        values: '0x10 50000 0 50000 0 50000 0 50000 0'
      - series: 'stratalog_replication_throttle_bytes_per_second{instance="a", side="leader"}'
        values: '+Inf+0x9 1000000x50'
      - series: 'stratalog_replication_throttle_bytes_per_second{instance="a", side="follower"}'
        values: '+Inf+0x60'
      - series: 'stratalog_partitions_reassigning{instance="a"}'
        values: '0x60'
      - series: 'stratalog_partitions_reassigning{instance="b"}'
        values: '0x9 3x10 0x41'
      - series: 'stratalog_reassignment_bytes_left{instance="stuck"}'
        values: '2048x60'
      - series: 'stratalog_reassignment_bytes_left{instance="moving"}'
        values: '4096-10x60'
      - series: 'stratalog_topic_messages_in_total{topic="fallen"}'
        values: '0+6000x120 720006+6x80'
      - series: 'stratalog_topic_messages_in_total{topic="steady"}'
        values: '0+6000x200'
    alert_rule_test:
      - eval_time: 140m
        alertname: StratalogAppendRateFell
        exp_alerts: []
      - eval_time: 170m
        alertname: StratalogAppendRateFell
        exp_alerts:
          - exp_labels: {topic: fallen}
            exp_annotations:
              summary: "fallen gets 0.1 records a second, a tenth of what it got in a day, or less"
      - eval_time: 5m
        alertname: StratalogRetentionOvertakesGroup
        exp_alerts: []
      - eval_time: 15m
        alertname: StratalogRetentionOvertakesGroup
        exp_alerts:
          - exp_labels: {group: slow, topic: t}
            exp_annotations: {summary: "slow loses records of t in 5h 0m 0s"}
      - eval_time: 10m
        alertname: StratalogNotReady
        exp_alerts: []
      - eval_time: 14m
        alertname: StratalogNotReady
        exp_alerts:
          - exp_labels: {instance: i}
            exp_annotations: {summary: "i is not ready, or only partly: /readyz has the reason"}
      - eval_time: 90m
        alertname: StratalogTierBehind
        exp_alerts:
          - exp_labels: {topic: growing}
            exp_annotations:
              summary: "90 closed segments of growing wait for the bucket, and their number grows"
      - eval_time: 60m
        alertname: StratalogLogDirectoryFailed
        exp_alerts: []
      - eval_time: 20m
        alertname: StratalogNoController
        exp_alerts: []
      - eval_time: 23m
        alertname: StratalogNoController
        exp_alerts:
          - exp_annotations:
              summary: "no node is the active controller: the metadata quorum has lost its majority"
      - eval_time: 30m
        alertname: StratalogElections
        exp_alerts: []
      - eval_time: 40m
        alertname: StratalogElections
        exp_alerts:
          - exp_annotations: {summary: "the metadata quorum held 10 elections in ten minutes"}
      - eval_time: 12m
        alertname: StratalogBrokerFenced
        exp_alerts: []
      - eval_time: 14m
        alertname: StratalogBrokerFenced
        exp_alerts:
          - exp_labels: {state: fenced}
            exp_annotations: {summary: "1 broker(s) are fenced: down, cut off, or still starting"}
      - eval_time: 10m
        alertname: StratalogPartitionsOffline
        exp_alerts: []
      - eval_time: 13m
        alertname: StratalogPartitionsOffline
        exp_alerts:
          - exp_labels: {instance: a}
            exp_annotations: {summary: "4 partition(s) have no leader"}
      - eval_time: 20m
        alertname: StratalogQuorumNotFollowed
        exp_alerts: []
      - eval_time: 23m
        alertname: StratalogQuorumNotFollowed
        exp_alerts:
          - exp_labels: {instance: a, state: candidate}
            exp_annotations:
              summary: "a is candidate: it finds no leader of the metadata quorum"
      - eval_time: 12m
        alertname: StratalogReplicaLags
        exp_alerts: []
      - eval_time: 17m
        alertname: StratalogReplicaLags
        exp_alerts:
          - exp_labels: {instance: slow}
            exp_annotations:
              summary: "an in-sync follower of slow is at least 21000 records behind for five minutes"
      - eval_time: 30m
        alertname: StratalogThrottleLeftBehind
        exp_alerts: []
      - eval_time: 40m
        alertname: StratalogThrottleLeftBehind
        exp_alerts:
          - exp_labels: {instance: a, side: leader}
            exp_annotations:
              summary: "a limits replicas as leader, and none moves: strata partition reassign --wait"
      - eval_time: 10m
        alertname: StratalogUnderMinIsr
        exp_alerts: []
      - eval_time: 13m
        alertname: StratalogUnderMinIsr
        exp_alerts:
          - exp_labels: {instance: a}
            exp_annotations: {summary: "2 partition(s) led by a refuse acks=all"}
      - eval_time: 13m
        alertname: StratalogUnderReplicated
        exp_alerts: []
      - eval_time: 25m
        alertname: StratalogUnderReplicated
        exp_alerts:
          - exp_labels: {instance: a}
            exp_annotations: {summary: "7 partition(s) led by a lack an in-sync replica"}
      - eval_time: 24m
        alertname: StratalogTransactionOpenForLong
        exp_alerts: []
      - eval_time: 30m
        alertname: StratalogTransactionOpenForLong
        exp_alerts:
          - exp_labels: {instance: slow}
            exp_annotations:
              summary: "a transaction of slow has had no end for 30m 0s: strata txn list"
      - eval_time: 10m
        alertname: StratalogTransactionHangs
        exp_alerts: []
      - eval_time: 17m
        alertname: StratalogTransactionHangs
        exp_alerts:
          - exp_labels: {instance: a}
            exp_annotations:
              summary: "3 partition(s) led by a have a late transaction: strata txn find-hanging"
      - eval_time: 10m
        alertname: StratalogUncleanElection
        exp_alerts: []
      - eval_time: 12m
        alertname: StratalogUncleanElection
        exp_alerts:
          - exp_labels: {kind: unclean}
            exp_annotations:
              summary: "leaders were elected that were not in sync: acknowledged records may be lost"
      - eval_time: 30m
        alertname: StratalogLeadersNotPreferred
        exp_alerts: []
      - eval_time: 42m
        alertname: StratalogLeadersNotPreferred
        exp_alerts:
          - exp_labels: {instance: a}
            exp_annotations: {summary: "6 partition(s) are not led by their first replica"}
      - eval_time: 5m
        alertname: StratalogIsrFlaps
        exp_alerts: []
      - eval_time: 10m
        alertname: StratalogUncleanElection
        exp_alerts: []
      - eval_time: 15m
        alertname: StratalogIsrFlaps
        exp_alerts:
          - exp_labels: {instance: flapping}
            exp_annotations:
              summary: "replicas of partitions led by flapping leave the ISR and come back: a slow drive or network"
      - eval_time: 45m
        alertname: StratalogReassignmentStalled
        exp_alerts:
          - exp_labels: {instance: stuck}
            exp_annotations:
              summary: "partitions led by stuck move, and the 2kiB left do not shrink"
"""


def test_prometheus_scrapes_a_broker(broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "stratalog.rules.yml").write_text(RULES.read_text())
    config = block("scrape_configs:").replace("127.0.0.1:9404", f"127.0.0.1:{monitor_port(broker)}")
    (tmp_path / "prometheus.yml").write_text(config.replace("15s", "1s"))
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [
        program("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, cwd=tmp_path)
    try:

        def counted() -> bool:
            query = quote('stratalog_topic_messages_in_total{job="stratalog",topic="counted"}')
            try:
                with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={query}", timeout=5) as r:
                    found = json.load(r)["data"]["result"]
            except OSError:
                assert process.poll() is None, (tmp_path / "output").read_text()
                return False
            return bool(found) and found[0]["value"][1] == "7"

        wait_for(counted, "7 records in Prometheus")
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
