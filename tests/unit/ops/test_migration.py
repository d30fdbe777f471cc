"""An inspection of directories that our server does not start on."""

import pytest

from stratalog.adapters.local_disk import LocalDisk
from stratalog.ops.migration import inspect

META = "version=1\ncluster.id=fPPmFC6FTVGQ9jPVi5F-zA\nnode.id=1\n"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no formatted log directory"),
        ({"meta.properties": "version=0\nbroker.id=1\ncluster.id=a\n"}, "ZooKeeper"),
        (
            {"meta.properties": META, "__cluster_metadata-0/0.log": ""},
            None,
        ),
    ],
)
def test_a_directory_that_cannot_be_opened_says_why(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    disk = LocalDisk(str(tmp_path))
    refused = [one.text for one in inspect(disk) if one.kind == "refused"]
    disk.close()
    assert len(refused) == (said is not None), refused
    if said is not None:
        assert said in refused[0]
