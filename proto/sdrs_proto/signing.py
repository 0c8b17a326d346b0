"""Orders that store or destroy are signed: whoever reaches a node's port is not yet its controller."""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeVar

from sdrs_proto.v1.storage_pb2 import DropFragmentsRequest, PullFragmentRequest

Order = TypeVar("Order", DropFragmentsRequest, PullFragmentRequest)


def shared_secret(node_key: str) -> str:
    """What the controller keeps of the key that a node registered with; the key itself it forgets."""
    return hashlib.sha256(node_key.encode()).hexdigest()


def signature(secret: str, request: Order) -> bytes:
    """Over all of ``request`` but its signature."""
    unsigned = type(request)()
    unsigned.CopyFrom(request)
    unsigned.ClearField("signature")
    return hmac.new(secret.encode(), unsigned.SerializeToString(deterministic=True), hashlib.sha256).digest()
