"""The pure part of SDRS: words, checksums, errors and decisions.

Nothing here opens a socket or reads a clock, so that a decision can be tested by calling it.
Every other package stands on this one; this one stands on none of them.
"""
