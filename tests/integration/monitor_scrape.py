"""A node's monitor over real HTTP, for tests.

In: a port. Out: status and text, or samples by name and labels. It never asks twice by itself.
"""

from http.client import HTTPConnection

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 30
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def get(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def parse(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scrape:
    """One scrape: `scrape("topic_bytes_in_total", topic="t")` is that sample's value."""

    def __init__(self, port: int) -> None:
        status, self.text = get(port, "/metrics")
        assert status == 200, self.text
        self.samples = parse(self.text)

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"stratalog_{name}", frozenset(labels.items())]

    def find(self, name: str, **labels: str) -> float | None:
        return self.samples.get((f"stratalog_{name}", frozenset(labels.items())))
