"""Connections and requests: frames, turns, memory limits, and the dispatch from a request's bytes to its handler."""
