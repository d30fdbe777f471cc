"""For whoever runs a cluster.

In: what they expect of it; a bucket. Out: figures to buy and to judge by; a node. Nothing here serves anybody.
"""
