"""Compaction: which log is the dirtiest, what stays of its batches, the swap of segments. It touches no disk."""
