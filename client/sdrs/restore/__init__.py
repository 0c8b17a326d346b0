"""A restore, from the catalog's record to verified bytes.

``blocks`` checks them (I5), ``shard_reader`` reads one rank's blobs from whichever holder serves, ``targets`` take the
bytes, ``readings`` make a state or files of them, ``restorer`` chooses the generation, alone or with other ranks (P16).
"""
