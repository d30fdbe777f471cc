"""The bucket's cleaner behind S3's protocol, while `kill -9` ends the broker: a mock server, MinIO and versitygw.

`KILLS=20 ./test --all tests/integration/test_compacted_s3.py` sets how often.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import boto3
import pytest
from moto.server import ThreadedMotoServer
from tests.broker_process import broker_process
from tests.compat.object_servers import ENVIRONMENT, s3_server
from tests.integration.compacted_table import SETTINGS
from tests.integration.test_compacted_tier import last_values_survive

KILLS = int(os.environ.get("KILLS", "2"))
BUCKET = "stratalog-compacted"

pytestmark = [pytest.mark.big, pytest.mark.timeout(300 + 60 * KILLS)]


def mock_server(_place: Path) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def real_server(kind: str, place: Path) -> Iterator[str]:
    with s3_server(kind, place) as server:
        yield server.endpoint


SERVERS = {
    "a mock": mock_server,
    "minio": partial(real_server, "minio"),
    "versitygw": partial(real_server, "versitygw"),
}


@pytest.fixture(params=SERVERS)
def url(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for endpoint in SERVERS[request.param](tmp_path):
        client = boto3.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield f"s3://{BUCKET}/tier?endpoint={quote(endpoint)}&region=us-east-1"


def test_the_last_values_survive_kills_beside_s3(tmp_path: Path, url: str) -> None:
    settings = {name.replace(".", "__"): value for name, value in SETTINGS.items()}
    with broker_process(tmp_path, tier__url=url, **settings) as broker:
        last_values_survive(broker, url, KILLS)
