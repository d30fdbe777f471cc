"""One partition on one disk: segments, indexes, producer state, retention.

In: checked record batches and the time. Out: offsets, batches, and effects for a directory's executor. Nothing here
touches a disk, a clock or the network. Begin with `partition_log`; `recovery` loads one from its files.
"""
