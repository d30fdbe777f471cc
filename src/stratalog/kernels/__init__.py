"""Compiled decoding of record batches to Arrow.

In: record batches. Out: Arrow record batches.
"""
