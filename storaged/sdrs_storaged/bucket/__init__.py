"""Buckets of S3-compatible stores, as one machine sees them: what is in them, and how bytes get in and out.

Everything here blocks: callers run it in threads. Nothing here knows the catalog; what is backed up, kept or deleted is
decided elsewhere.
"""
