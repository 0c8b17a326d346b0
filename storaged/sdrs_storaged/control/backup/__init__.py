"""Backups in buckets, as the controller carries them out: what is due, what the bucket has, what may go from it."""
