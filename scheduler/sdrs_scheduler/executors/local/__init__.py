"""Runs as processes of this machine. A shepherd for each of them outlives the scheduler.

The scheduler's side is ``executor``; the rest is shared with ``shepherd``, or its own, and imports the standard library
only: a shepherd stays in memory for as long as its run.
"""
