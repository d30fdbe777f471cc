"""The web console: pages about a cluster, rendered on the server.

In: a cluster's address, a bucket's URL, HTTP requests. Out: pages, as HTML and as JSON. It is only a client: it knows
no broker's inside, so it works against Apache Kafka too. It changes something only where it was started to.
"""
