"""Who holds what of a shard, as the controller said last."""

from __future__ import annotations

from dataclasses import dataclass

from sdrs_core.checkpoints import Blob, Shard
from sdrs_core.cluster import Node, NodeState, ReadPolicy
from sdrs_core.codes import MIRROR, Code, parse_code
from sdrs_core.errors import InvalidArgumentError, UnsupportedError
from sdrs_core.ids import NodeId
from sdrs_proto.convert import node_from, read_policy_from, shard_from
from sdrs_proto.dial import is_local
from sdrs_proto.v1.control_pb2 import ListShardsResponse


@dataclass(frozen=True, slots=True)
class Record:
    policy: ReadPolicy
    nodes: dict[NodeId, Node]
    up: frozenset[NodeId]
    # On this host.
    near: frozenset[NodeId]
    shard: Shard

    def forms(self, wanted: Blob) -> list[Blob]:
        """Where ``wanted`` can be had now: in its own pool, and then in the one that mirrors that.

        By its place in the shard: one that was coded anew has another id (P2), and the same content.
        """
        return [
            blob
            for blob in self.shard.all_blobs
            if (blob.ordinal, blob.size_bytes, blob.hash) == (wanted.ordinal, wanted.size_bytes, wanted.hash)
        ]

    def is_mirror(self, blob: Blob) -> bool:
        return any(mirror.id == blob.id for mirror in self.shard.mirrors)


def record_from(message: ListShardsResponse) -> Record:
    nodes = {node.id: node for node in map(node_from, message.nodes)}
    return Record(
        policy=read_policy_from(message.read_policy),
        nodes=nodes,
        up=frozenset(node.id for node in nodes.values() if node.state is NodeState.UP),
        near=frozenset(node.id for node in nodes.values() if is_local(node)),
        shard=shard_from(message.shards[0]),
    )


def code_of(blob: Blob) -> Code:
    """A whole copy is all of one fragment."""
    if blob.code == MIRROR:
        return Code(1, 0)
    try:
        code = parse_code(blob.code)
        assert code is not None
        return code
    except InvalidArgumentError as error:
        raise UnsupportedError(
            f"blob {blob.id} is stored as {blob.code}, which this sdrs does not read: upgrade it"
        ) from error
