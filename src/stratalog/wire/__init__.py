"""Bytes <-> values: frames, messages, record batches, records, codecs, Kafka's internal records.

In: bytes as they come from a socket or a file. Out: values, and back. Nothing here does I/O or keeps state.
"""
