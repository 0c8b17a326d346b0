"""A save, from the caller's state to the commit.

``payload`` is what is sent, ``staging`` its copy, ``upload`` brings one shard to a node, ``commits`` waits for the
commit, ``in_flight`` keeps all of that bounded, and lets no failure get lost (I6).
"""
