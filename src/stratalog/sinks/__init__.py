"""Write rows into OpenSearch and Cassandra. In: Arrow record batches. Out: requests to the store, and the rows that it
refused.
"""
