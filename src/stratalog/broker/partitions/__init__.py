"""The partitions that this broker hosts: create, load, append, read, wait for records, move."""
