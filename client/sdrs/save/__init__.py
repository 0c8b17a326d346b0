"""A save, from the caller's state to the commit.

``payload`` is what is sent. ``local_stage`` copies it into memory of this host's daemon (``mapped_segment``), over a
``stage_session``, and ``staged`` follows what the daemon makes of it. Without one it is copied into ``private_memory``,
or not at all, and ``upload`` brings it to a node. ``commits`` waits for the commit; ``in_flight`` keeps all of that
bounded, by the user's ``policy``, and lets no failure get lost (I6).
"""
