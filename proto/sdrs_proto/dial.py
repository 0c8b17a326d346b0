"""Connections to a node's data channel: what clients and nodes alike do before the first byte."""

from __future__ import annotations

import os
import socket

from sdrs_core.cluster import Node
from sdrs_core.errors import UnavailableError
from sdrs_proto.channel import HELLO, MAGIC, tune
from sdrs_proto.limits import STALL_SECONDS

# A closed port answers at once; one behind a firewall may never.
CONNECT_SECONDS = 3.0


class DataPortUnreachableError(UnavailableError):
    """The node's data channel cannot be reached; its gRPC port may be."""


def is_local(node: Node) -> bool:
    """Whether the node's unix socket can be used: a container may share its host's name but not its files."""
    ends = node.endpoints
    return bool(ends.unix) and ends.host == socket.gethostname() and os.path.exists(ends.unix)


def open_channel(node: Node, ticket: str, flags: int = 0) -> socket.socket:
    """A connection that has introduced itself with ``ticket``."""
    connection = _connect(node)
    try:
        tune(connection, STALL_SECONDS)
        connection.sendall(HELLO.pack(MAGIC, flags, ticket.encode()))
    except OSError as error:
        connection.close()
        raise UnavailableError(f"node {node.id} closed its data channel: {error}") from error
    return connection


def _connect(node: Node) -> socket.socket:
    if is_local(node):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(node.endpoints.unix)
            return connection
        except OSError:
            connection.close()  # perhaps left over from a node that is gone: its TCP port tells
    host, _, port = node.endpoints.data.rpartition(":")
    try:
        # Brackets of an IPv6 address are for people.
        return socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise DataPortUnreachableError(
            f"the data channel of node {node.id} at {node.endpoints.data} cannot be reached: {error}"
        ) from error
