"""The client of brokers: a core without I/O, with an asyncio shell and a blocking one.

In: arguments, and bytes from brokers. Out: requests, and answers as dataclasses.
"""
