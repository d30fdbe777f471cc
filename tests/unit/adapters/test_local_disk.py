"""A log directory of the operating system: what its open descriptors show."""

from pathlib import Path

from stratalog.adapters.local_disk import LocalDisk


def test_a_file_that_was_replaced_or_deleted_is_opened_again(tmp_path: Path) -> None:
    disk = LocalDisk(str(tmp_path))
    assert disk.lock()
    for data in (b"one", b"two"):
        disk.write_file("a", data)
        assert bytes(disk.read("a", 0, 3)) == data
    many = {"a": b"six"} | {f"b{number}": b"" for number in range(300)}
    disk.make_durable(many, [], [])
    assert bytes(disk.read("a", 0, 3)) == b"six"
    disk.unlink("a")
    (tmp_path / "a").write_bytes(b"ten")
    assert bytes(disk.read("a", 0, 3)) == b"ten"
    disk.close()
