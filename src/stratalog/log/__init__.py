"""One partition on one disk: segments, indexes, producer state, retention.

In: checked record batches and the time. Out: offsets, batches, and effects for the directory's executor. Nothing here
touches a disk, a clock or the network. Start with `partition_log`; `recovery` loads a log from its files.
"""
