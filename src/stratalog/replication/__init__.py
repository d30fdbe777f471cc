"""Who is in sync, what is committed, who waits for it. Pure.

In: log end offsets of the leader and its followers, requests that wait. Out: high watermarks, changes of the ISR to
propose, requests to answer. It never reads a log and never talks to anyone.
"""
