"""Orders that store or destroy are signed: whoever reaches a node's port is not yet its controller."""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeVar

from sdrs_proto.v1.storage_pb2 import (
    DescribeBlobRequest,
    DropFragmentsRequest,
    ProbeTargetRequest,
    PullFragmentRequest,
    UploadBlobRequest,
)

SignedRequest = TypeVar(
    "SignedRequest",
    DropFragmentsRequest,
    PullFragmentRequest,
    DescribeBlobRequest,
    UploadBlobRequest,
    ProbeTargetRequest,
)


def shared_secret(node_key: str) -> str:
    """What the controller keeps of the key that a node registered with; the key itself it forgets."""
    return hashlib.sha256(node_key.encode()).hexdigest()


def signature(secret: str, request: SignedRequest) -> bytes:
    """Over the kind of ``request`` and all of it but its signature."""
    unsigned = type(request)()
    unsigned.CopyFrom(request)
    unsigned.ClearField("signature")
    # With its name: the bytes of one kind of order may read as another kind.
    signed = request.DESCRIPTOR.full_name.encode() + b"\0" + unsigned.SerializeToString(deterministic=True)
    return hmac.new(secret.encode(), signed, hashlib.sha256).digest()
