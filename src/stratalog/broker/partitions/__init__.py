"""The partitions that this broker hosts: created, loaded, written, read, waited for, moved."""
