"""Connections and requests: frames, turns, limits of memory, and the way from a request's bytes to its handler."""
