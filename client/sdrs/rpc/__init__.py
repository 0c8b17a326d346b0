"""Calls to controllers and nodes: channels, deadlines, retries, and errors of our own instead of gRPC's."""
