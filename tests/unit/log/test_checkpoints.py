"""The text files of a log directory, byte for byte as Kafka writes them."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import Corrupt
from stratalog.log.checkpoints import (
    MetaProperties,
    decode_clean_shutdown,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_lines,
    encode_meta_properties,
    encode_partition_metadata,
    offset_line,
)
from stratalog.wire.ids import TopicPartition

ID = uuid.UUID("28b72cba-f5c8-48e8-9b3e-9332d405191d")


def test_an_offset_checkpoint_is_a_version_a_count_and_lines():
    offsets = {TopicPartition("a", 0): 12, TopicPartition("b.c", 17): 0}
    data = encode_lines([offset_line(*one) for one in offsets.items()])
    assert data == b"0\n2\na 0 12\nb.c 17 0\n"
    assert decode_offsets(data) == offsets
    assert decode_offsets(b"0\n0\n") == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na x 1\n",
        b"\xff\n0\n",
        b"0\n1_0\n",
    ],
)
def test_an_offset_checkpoint_that_is_cut_or_altered_is_corrupt(data):
    with pytest.raises(Corrupt):
        decode_offsets(data)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_corrupt_and_nothing_else(data):
    for decode in (
        decode_offsets,
        decode_epochs,
        decode_meta_properties,
        decode_partition_metadata,
    ):
        try:
            decode(data)
        except Corrupt:
            continue
    assert isinstance(decode_clean_shutdown(data), int)


def test_meta_properties_as_kafka_writes_them_are_read():
    text = (
        b"#\n#Sat Nov 21 09:00:00 UTC 2026\ncluster.id=abc\n"
        b"directory.id=KLcsuvXISOibPpMy1AUZHQ\nnode.id=3\nversion=1\n"
    )
    assert decode_meta_properties(text) == MetaProperties("abc", 3, ID)


@pytest.mark.parametrize("directory_id", [None, ID])
def test_meta_properties_are_read_as_they_were_written(directory_id):
    meta = MetaProperties("abc", 3, directory_id)
    assert decode_meta_properties(encode_meta_properties(meta)) == meta


@pytest.mark.parametrize(
    "text",
    [
        b"version=0\ncluster.id=a\nnode.id=1\n",
        b"version=1\nnode.id=1\n",
        b"version=1\ncluster.id=a\n",
        b"version=1\ncluster.id=a\nnode.id=one\n",
        b"version=1\ncluster.id=../a\nnode.id=1\n",
        b"version=1\ncluster.id=a\nnode.id=1\ndirectory.id=short\n",
    ],
)
def test_meta_properties_with_something_missing_are_corrupt(text):
    with pytest.raises(Corrupt):
        decode_meta_properties(text)


def test_meta_properties_of_zookeeper_times_name_the_way_on():
    with pytest.raises(Corrupt, match="ZooKeeper"):
        decode_meta_properties(b"version=0\nbroker.id=1\ncluster.id=a\n")


def test_partition_metadata_names_the_topic():
    assert encode_partition_metadata(ID) == b"version: 0\ntopic_id: KLcsuvXISOibPpMy1AUZHQ"
    assert decode_partition_metadata(encode_partition_metadata(ID) + b"\n") == ID
    with pytest.raises(Corrupt):
        decode_partition_metadata(b"version: 1\ntopic_id: KLcsuvXISOibPpMy1AUZHQ")


def test_a_clean_shutdown_file_carries_the_broker_epoch_if_it_has_one():
    assert decode_clean_shutdown(encode_clean_shutdown(7)) == 7
    assert decode_clean_shutdown(b"") == -1
