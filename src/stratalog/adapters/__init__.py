"""The only code that touches the system or a vendor's library: the real implementation of `ports`.

In: calls of the ports. Out: system calls, requests to object stores.
"""
