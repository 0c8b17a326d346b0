"""Where things are: keys of records (``schedule/...``) and of notes."""

from __future__ import annotations

ALL = "schedule/"
JOBS = "schedule/job/"
ATTEMPTS = "schedule/attempt/"
QUEUES = "schedule/queue/"
NODES = "schedule/node/"
HISTORIES = "schedule/history/"
USAGE = "schedule/usage"
# Compared by every transaction of the scheduler, and changed only by one that takes over.
TERM = "schedule/term"
LEASE = "schedule/lease"
# Notes, whose keys have no prefix.
BEATS = "beat/"


def job(job_id: str) -> str:
    return f"{JOBS}{job_id}"


def attempts(job_id: str) -> str:
    return f"{ATTEMPTS}{job_id}/"


def attempt(job_id: str, number: int) -> str:
    return f"{attempts(job_id)}{number:06d}"


def queue(name: str) -> str:
    return f"{QUEUES}{name}"


def node(name: str) -> str:
    return f"{NODES}{name}"


def history(name: str) -> str:
    """Which job goes on with a history of checkpoints: at most one at a time."""
    return f"{HISTORIES}{name}"


def orders(job_id: str, attempt_number: int) -> str:
    return f"orders/{job_id}/{attempt_number}"
