"""Staging (P12): processes of this host copy their shards into segments that this daemon owns, and go on.

``segments`` are the files and who may use them, ``sessions`` the connections that processes hold, ``stager`` carries
out what was sealed: ``carrier`` decides where to, ``sending`` brings it there.
"""
