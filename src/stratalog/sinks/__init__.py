"""Rows into other people's stores. In: Arrow record batches. Out: requests to the store, and what it refused."""
