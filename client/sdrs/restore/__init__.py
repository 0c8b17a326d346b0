"""A restore, from the catalog's record to verified bytes.

===================  ==================================================================================
``restorer``         chooses the generation, alone or with other ranks (P16)
``readings``         make a state or files of what is read, ``into`` fills one that is there; ``targets`` take the bytes
``parts``            single arrays, files and ranges of bytes
``shard_reader``     reads one rank's blobs, their ranges in parallel
``range_reading``    one range through its tries: memory, own pool, mirror, again, the backup; what is told in the end
``staged``           what this host still has in memory, where it was staged
``recalls``          the controller is asked to bring a checkpoint back from a backup
``stripe_reader``    one try: from whom, who is raced by whom, what is left for another
``inflating``        what is stored compressed, as it was saved
``lanes``            one holder's fragment on its way in
``decoding``         one stripe, and what is computed of it
``blocks``           the checks (I5, P9)
``sources``          who holds what (``record``), who is asked first (``holders``), what is damaged (``reports``)
``stripes, pace``    arithmetic: which blocks and fragments, how much patience
===================  ==================================================================================
"""
