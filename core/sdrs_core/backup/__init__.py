"""Backups in buckets, as values and decisions: where they go, what an object is called, what is due, what may go."""
