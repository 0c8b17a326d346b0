"""Limits and deadlines of the wire; both ends use the same."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 8 << 20
# Packed, in a request that also names up to 10,000 nodes.
MAX_GIVEN_SNAPSHOT_BYTES = 7 << 20
MAX_PAGE_SIZE = 1000
DEFAULT_PAGE_SIZE = 100
# A shard is one record: this many blobs fit into 1.5 MiB, with several holders each (P3).
MAX_BLOBS_PER_SHARD = 1024
# Of fragments that are asked for in one call: a few for each blob of a shard.
MAX_LOOKUP_NAMES = 8192
# Blobs from this size on take the data channel.
DATA_CHANNEL_BYTES = 1 << 20
MAX_BLOB_BYTES = 16 << 40
TICKET_SECONDS = 10
# A transfer that moves nothing for so long is over.
STALL_SECONDS = 30
# The slowest transfer that is still waited for.
SLOWEST_BYTES_PER_SECOND = 10_000_000
# Sealing registers a receipt, which waits for the controller's transaction.
SEAL_SECONDS = 30.0

CALL_SECONDS = 10.0
# Long polls are held back by the server for at most this long; the call itself gets CALL_SECONDS on top.
MAX_WAIT_MS = 20_000

# Of what a scheduler keeps: one record or note, and what one change may touch.
MAX_RECORD_BYTES = 256 << 10
MAX_RECORDS_PER_CHANGE = 64
MAX_CHANGE_BYTES = 1 << 20
MAX_RECORD_KEY_BYTES = 512
MAX_NOTE_BYTES = 16 << 10
MAX_NOTE_KEY_CHARS = 256

CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A dead peer is noticed while a call waits for it; idle connections cost no pings.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Newer runtimes have this one beside it, with a minute as its default.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    # A daemon that restarts is found again soon: gRPC's own pauses grow to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # In spite of its name: how long one attempt to connect may take. A peer that is merely busy must get through it;
    # one that refuses is tried again after the backoff all the same.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Loopback and cluster addresses never go through a web proxy.
    ("grpc.enable_http_proxy", 0),
]


def transfer_seconds(size_bytes: int, stall_seconds: float = STALL_SECONDS) -> float:
    return stall_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND
