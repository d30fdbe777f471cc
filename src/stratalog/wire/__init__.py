"""Convert between bytes and values: frames, messages, record batches, records, compression, Kafka's internal records.

In: bytes from a socket or a file, or values. Out: the other. No code here does I/O or keeps state.
"""
