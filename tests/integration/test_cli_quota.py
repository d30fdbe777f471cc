"""`strata quota`: quotas of a real broker, which limit librdkafka's producer, and its metrics."""

import json
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from tests.broker_process import BrokerProcess, broker_process
from tests.integration.monitor_scrape import Scrape
from tests.integration.server_process import strata


def quota(broker: BrokerProcess, *words: str) -> tuple[int, str, str]:
    done = strata("quota", *words, "-b", broker.address)
    return done.returncode, done.stdout, done.stderr


def listed(broker: BrokerProcess, *words: str) -> Any:
    status, output, errors = quota(broker, "list", *words, "--json")
    assert status == 0, errors
    return json.loads(output)


def test_quotas_are_set_listed_and_removed_and_limit_a_producer(tmp_path: Path) -> None:
    with broker_process(tmp_path, monitor__listener="127.0.0.1:0") as broker:
        assert listed(broker) == []
        assert quota(broker, "set", "--client-id", "p", "--producer-byte-rate", "20KB")[0] == 0
        names = ("--user-defaults", "--client-id", "app")
        words = ("--request-percentage", "12.5", "--controller-mutation-rate", "12345678")
        assert quota(broker, "set", *names, *words)[0] == 0
        assert quota(broker, "set", "--ip", "127.0.0.9", "--connection-creation-rate", "5")[0] == 0
        rows = listed(broker)
        assert [(row["quota"], row["value"]) for row in rows] == [
            ("controller_mutation_rate", 12_345_678.0),
            ("request_percentage", 12.5),
            ("producer_byte_rate", 20_000.0),
            ("connection_creation_rate", 5.0),
        ]
        assert (rows[1]["user"], rows[1]["client_id"], rows[1]["ip"]) == ("<default>", "app", None)
        assert listed(broker, "--ip", "127.0.0.9") == rows[3:]
        table = quota(broker, "list")[1]
        assert [text in table for text in ("20 kB/s", "12.5", "12345678")] == [True] * 3

        producer = Producer({"bootstrap.servers": broker.address, "client.id": "p"})
        producer.produce("t", bytes(210_000))
        assert producer.flush(30) == 0
        value = Scrape(json.loads((broker.directory / "ready.json").read_text())["monitor_port"])
        assert value("client_throttles_total", quota="producer_byte_rate") == 1
        assert 0.4 < value("client_throttle_seconds_total", quota="producer_byte_rate") < 0.6

        assert quota(broker, "remove", *names, "--quota", "request_percentage")[0] == 0
        assert quota(broker, "remove", *names)[0] == 0
        assert [row["quota"] for row in listed(broker)] == [
            "producer_byte_rate",
            "connection_creation_rate",
        ]


def test_a_wrong_quota_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        for words, remedy in (
            (("set", "--user", "a"), "name a quota"),
            (("set", "--producer-byte-rate", "1MB"), "--user-defaults"),
            (("set", "--user", "a", "--user-defaults", "--request-percentage", "1"), "one of"),
            (("set", "--user", "a", "--producer-byte-rate", "fast"), "100MB"),
            (("set", "--user", "a", "--request-percentage=-1"), "above 0"),
            (("set", "--ip", "a.example", "--connection-creation-rate", "1"), "no host name"),
            (("set", "--user", "a", "--connection-creation-rate", "1"), "producer_byte_rate"),
            (("remove", "--user", "a"), "strata quota list"),
            (("remove",), "name a client"),
        ):
            status, _, errors = quota(broker, *words)
            assert (status, remedy in errors) == (2, True), (words, errors)
            assert "Traceback" not in errors
            assert len(errors.splitlines()) == 1


def test_perf_says_that_quotas_made_it_wait(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:

        def perf(*words: str) -> str:
            done = strata("perf", *words, "-b", broker.address)
            assert done.returncode == 0, done.stderr
            return done.stderr

        made = strata("topic", "create", "t", "-b", broker.address)
        assert made.returncode == 0, made.stderr
        send = ("produce", "t", "--num-records", "200", "-X", "batch.size=65536")
        read = ("consume", "t", "--timeout", "1000", "-X", "max.partition.fetch.bytes=1")
        assert "quota" not in perf(*send)
        assert "quota" not in perf(*read)
        rates = ("--producer-byte-rate", "20KB", "--consumer-byte-rate", "15KB")
        assert quota(broker, "set", "--user", "ANONYMOUS", *rates)[0] == 0
        for words in (send, read):
            *_, line = perf(*words).splitlines()
            assert line.startswith("client quotas made this command wait ")
            assert line.endswith(" s in all; they are in: strata quota list")
