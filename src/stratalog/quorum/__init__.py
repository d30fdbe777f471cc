"""Who leads the metadata log, and what its leader decides.

In: requests, the image, the quorum's saved state. Out: records to append, and answers. It never appends, waits or
reads a file.
"""
