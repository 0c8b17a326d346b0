"""The MetaStore's values as etcd's messages and back; keys get the cluster's prefix on the way out and lose it here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from sdrs_proto.etcd import etcd_pb2 as pb
from sdrs_storaged.control.meta.store import (
    Compare,
    Delete,
    DeletePrefix,
    Entry,
    Event,
    EventKind,
    Op,
    Put,
    Target,
)


@dataclass(frozen=True, slots=True)
class LeasedPut(Put):
    """A record that goes away with its lease."""

    lease_id: int


class Messages:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.encode()

    def key(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def end(self, prefix: str) -> bytes:
        """The first key behind all that start with ``prefix``. The last byte of UTF-8 text is never 255."""
        under = self.key(prefix)
        return under[:-1] + bytes([under[-1] + 1])

    def entry(self, found: pb.KeyValue) -> Entry:
        return Entry(
            key=found.key[len(self._prefix) :].decode(),
            value=found.value,
            create_revision=found.create_revision,
            mod_revision=found.mod_revision,
            version=found.version,
        )

    def event(self, event: pb.Event) -> Event:
        kind = EventKind.DELETE if event.type == pb.Event.DELETE else EventKind.PUT
        return Event(kind, self.entry(event.kv))

    def txn(self, compare: Sequence[Compare], then: Sequence[Op]) -> pb.TxnRequest:
        request = pb.TxnRequest(
            compare=[self._compare(condition) for condition in compare], success=[self._op(op) for op in then]
        )
        if not then:
            # etcd answers a transaction that neither reads nor writes from whatever this member knows. A read in the
            # branch that is not taken makes it ask the others first.
            look = pb.RangeRequest(key=self._prefix, count_only=True)
            request.failure.append(pb.RequestOp(request_range=look))
        return request

    def _compare(self, compare: Compare) -> pb.Compare:
        key, expected = self.key(compare.key), compare.expected
        match compare.target:
            case Target.VALUE:
                return pb.Compare(key=key, target=pb.Compare.VALUE, value=cast(bytes, expected))
            case Target.VERSION:
                return pb.Compare(key=key, target=pb.Compare.VERSION, version=cast(int, expected))
            case Target.REVISION:
                return pb.Compare(key=key, target=pb.Compare.MOD, mod_revision=cast(int, expected))
            case Target.PRESENCE:
                result = pb.Compare.GREATER if expected else pb.Compare.EQUAL
                return pb.Compare(key=key, target=pb.Compare.VERSION, result=result, version=0)

    def _op(self, op: Op) -> pb.RequestOp:
        match op:
            case Put(key, value):
                lease_id = op.lease_id if isinstance(op, LeasedPut) else 0
                return pb.RequestOp(request_put=pb.PutRequest(key=self.key(key), value=value, lease=lease_id))
            case Delete(key):
                return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=self.key(key)))
            case DeletePrefix(prefix):
                gone = pb.DeleteRangeRequest(key=self.key(prefix), range_end=self.end(prefix))
                return pb.RequestOp(request_delete_range=gone)
