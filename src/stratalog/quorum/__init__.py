"""Leadership of the metadata log, and the controller's decisions.

In: requests, the image, the quorum's saved state. Out: records to append, and answers. It never appends, waits or
reads a file.
"""
