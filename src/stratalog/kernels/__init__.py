"""Compiled work on records: batches to Arrow."""
