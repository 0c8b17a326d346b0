"""Who this node is, and whose orders it takes: one small file, replaced whole and fsynced.

The highest authority and the highest epoch of each group are persisted before they are acted on (I3, P14), so that a
restart does not make the node forget who was deposed.
"""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from sdrs_core.cluster import Authority
from sdrs_core.errors import (
    CorruptDataError,
    FullError,
    RefusedError,
    StaleTermError,
    UnavailableError,
)
from sdrs_core.ids import ClusterId, GroupId, NodeId, random_id
from sdrs_proto.signing import shared_secret
from sdrs_storaged.folders import write_durably


@dataclass(frozen=True, slots=True)
class _State:
    node_id: NodeId
    key: str
    cluster_id: ClusterId
    authority: Authority = field(default_factory=Authority)
    epochs: dict[GroupId, int] = field(default_factory=dict)


class Identity:
    """Thread-safe. ``open`` reads the file, or makes an identity for a new node."""

    def __init__(self, path: Path, state: _State) -> None:
        self._path = path
        self._state = state
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, node_id: str) -> Identity:
        """``node_id``: the configured one, or empty to keep or invent one."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            raw["authority"] = Authority(**raw["authority"])
            state = _State(**raw)
        except FileNotFoundError:
            state = _State(NodeId(node_id or f"node-{random_id()[:8]}"), random_id(), ClusterId(""))
            identity = cls(path, state)
            identity._persist(state)
            return identity
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(
                f"{path} is damaged ({error}): restore it, or move it away to start as a new node"
            ) from error
        if node_id and node_id != state.node_id:
            raise RefusedError(
                f'{path} belongs to node "{state.node_id}", the configuration says "{node_id}": correct node.id '
                f"or data_dir"
            )
        return cls(path, state)

    @property
    def node_id(self) -> NodeId:
        return self._state.node_id

    @property
    def key(self) -> str:
        return self._state.key

    @property
    def secret(self) -> str:
        return shared_secret(self._state.key)

    @property
    def cluster_id(self) -> ClusterId:
        return self._state.cluster_id

    @property
    def authority(self) -> Authority:
        return self._state.authority

    @property
    def epochs(self) -> Mapping[GroupId, int]:
        """The highest epoch known of each group; never changed in place."""
        return self._state.epochs

    def join(self, cluster_id: ClusterId) -> None:
        with self._lock:
            if self._state.cluster_id and self._state.cluster_id != cluster_id:
                raise RefusedError(
                    f"{self._path.parent} belongs to cluster {self._state.cluster_id}, the controller serves "
                    f"cluster {cluster_id}: "
                    "point this node at its own controller, or give it an empty data_dir"
                )
            if not self._state.cluster_id:
                self._persist(replace(self._state, cluster_id=cluster_id))

    def obey(self, authority: Authority) -> None:
        """Take an order of ``authority``, or refuse it if a later one was seen (P14, P18)."""
        with self._lock:
            seen = self._state.authority
            is_newer = (authority.incarnation, authority.term) > (seen.incarnation, seen.term)
            is_older = (authority.incarnation, authority.term) < (seen.incarnation, seen.term)
            is_other = not is_newer and not is_older and bool(seen.term_id) and authority.term_id != seen.term_id
            # A new term of the same history begins where the last one ended. Within a term, orders may overtake.
            if (
                is_older
                or is_other
                or (is_newer and authority.incarnation == seen.incarnation and authority.revision < seen.revision)
            ):
                raise StaleTermError(
                    f"node {self.node_id} has seen term {seen.term} at revision {seen.revision} of incarnation "
                    f"{seen.incarnation}; an order of term {authority.term} at revision {authority.revision} is refused"
                )
            if is_newer or authority.revision > seen.revision:
                self._persist(replace(self._state, authority=authority))

    def raise_epochs(self, epochs: Mapping[GroupId, int]) -> None:
        """Persist those that are higher than what is known, all in one write; lower ones change nothing (I3)."""
        with self._lock:
            known = self._state.epochs
            higher = {group_id: epoch for group_id, epoch in epochs.items() if epoch > known.get(group_id, 0)}
            if higher:
                self._persist(replace(self._state, epochs={**known, **higher}))

    def _persist(self, state: _State) -> None:
        try:
            write_durably(self._path, json.dumps(asdict(state)))
        except OSError as error:
            # Not known, hence not acted on.
            kind = FullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
            raise kind(f"{self._path} cannot be written ({error.strerror}): free space, check the disk") from error
        self._state = state
