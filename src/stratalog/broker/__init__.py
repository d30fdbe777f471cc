"""The asyncio shell: requests in, answers out; it hosts partitions and lets the pure packages decide."""
