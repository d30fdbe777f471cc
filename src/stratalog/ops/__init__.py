"""Tools for operators: plan a cluster, restore a node from a bucket, repair logs.

In: a cluster's requirements; a bucket; a log directory. Out: estimates; a node; repaired logs. No code here serves
clients.
"""
