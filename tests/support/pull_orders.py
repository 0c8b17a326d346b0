"""Orders to nodes to make fragments, as the controller gives and signs them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from sdrs_core.ids import NodeId, random_id
from sdrs_proto import convert
from sdrs_proto.channel import PAYLOAD_OFFSET
from sdrs_proto.signing import shared_secret, signature
from sdrs_proto.v1 import storage_pb2 as pb
from tests.support.blob_sender import intent_of
from tests.support.stores import hash_of
from tests.support.told_nodes import ToldNodes

# Who holds which fragment.
Places = Mapping[int, str]


def written(told: ToldNodes, *names: str, data: bytes, blob_id: str = "") -> pb.WriteIntent:
    """A blob of which these nodes have whole copies, each in a group of its own."""
    intent = intent_of(told.form(names[0]), len(data))
    intent.blob_id = blob_id or intent.blob_id
    for name in names:
        group = told.form(name)
        intent.group_id, intent.epoch = group.id, group.epoch
        told.calls(name).write(intent, data)
    return intent


def fragment_of(whole: pb.WriteIntent, code: str, index: int = 0, blob_id: str = "") -> pb.WriteIntent:
    """The same content as ``whole`` in another form."""
    intent = pb.WriteIntent()
    intent.CopyFrom(whole)
    intent.code, intent.fragment_index = code, index
    intent.blob_id = blob_id or random_id()
    return intent


def sources_at(told: ToldNodes, places: Sequence[tuple[str, int]]) -> list[pb.FragmentSource]:
    return [
        pb.FragmentSource(node=convert.node_to(told.teller.nodes[NodeId(name)]), fragment_index=index)
        for name, index in places
    ]


def signed(told: ToldNodes, node: str, request: pb.PullFragmentRequest) -> pb.PullFragmentRequest:
    key = json.loads((told.daemons[node].data_dir / "node.json").read_text())["key"]
    request.signature = signature(shared_secret(key), request)
    return request


def order(
    told: ToldNodes,
    node: str,
    intent: pb.WriteIntent,
    blob_hash: str,
    sources: Sequence[pb.FragmentSource],
    *,
    of: pb.WriteIntent | None = None,
    term: int = 1,
    max_bytes_per_second: int = 0,
) -> pb.PullFragmentRequest:
    """``of``: the blob that ``sources`` hold, if it is another one."""
    source = of or intent
    request = pb.PullFragmentRequest(
        request_id=random_id(),
        intent=intent,
        hash=blob_hash,
        sources=sources,
        source_blob_id=source.blob_id,
        source_code=source.code,
        max_bytes_per_second=max_bytes_per_second,
    )
    request.authority.incarnation, request.authority.term, request.authority.revision = 1, term, 10**6
    request.intent.ClearField("group_id")
    request.intent.ClearField("epoch")
    return signed(told, node, request)


def pull(told: ToldNodes, node: str, request: pb.PullFragmentRequest) -> pb.HeldFragment:
    held: pb.HeldFragment = told.calls(node).call("pull_fragment", request).held
    return held


def encoded(
    told: ToldNodes, whole: pb.WriteIntent, holder: str, data: bytes, code: str, places: Places
) -> pb.WriteIntent:
    """A new blob of the same content in this code, each fragment made by its node from the copy that ``holder`` has."""
    blob_id = random_id()
    for index, name in places.items():
        intent = fragment_of(whole, code, index, blob_id)
        pull(told, name, order(told, name, intent, hash_of(data), sources_at(told, [(holder, 0)]), of=whole))
    return fragment_of(whole, code, 0, blob_id)


def file_of(told: ToldNodes, name: str, blob_id: str, index: int) -> Path | None:
    return next(told.daemons[name].data_dir.glob(f"disk-*/fragments/*/{blob_id}.{index}"), None)


def payload_of(told: ToldNodes, name: str, held: pb.HeldFragment) -> bytes:
    """What the node has on its disk."""
    path = file_of(told, name, held.blob_id, held.fragment_index)
    assert path
    return path.read_bytes()[PAYLOAD_OFFSET : PAYLOAD_OFFSET + held.size_bytes]
