"""The monitor: metrics and health of a node, over HTTP.

In: a running node, requests. Out: metrics and health as text.
"""
