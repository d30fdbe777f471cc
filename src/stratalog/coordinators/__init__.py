"""Consumer groups and committed offsets: state machines on internal topics. Pure.

In: requests, the time, and records of `__consumer_offsets`. Out: records to append, and answers.
"""
