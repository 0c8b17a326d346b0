"""The pools of a cluster: seen, made, changed, deleted. A change is online: data follows in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sdrs.process import Process
from sdrs.views import PoolInfo, pool_info_from
from sdrs_core.cluster import Pool, ReadPolicy, Retention
from sdrs_core.codes import Code, parse_code
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import NodeId, PoolName, check_name, random_id
from sdrs_core.levels import Level, parse_level
from sdrs_proto.convert import level_to, pool_to, read_policy_to
from sdrs_proto.v1 import control_pb2 as messages


class Pools(ABC):
    """The part of ``Cluster`` that is about pools."""

    @abstractmethod
    def process(self) -> Process:
        """What this process keeps for the cluster."""

    def pools(self) -> list[PoolInfo]:
        pages = self.process().control.pages("list_pools", messages.ListPoolsRequest())
        return [pool_info_from(pool) for page in pages for pool in page.pools]

    def pool(self, name: str) -> PoolInfo:
        response = self.process().control.call("get_pool", messages.GetPoolRequest(name=name))
        return pool_info_from(response.pool, list(response.groups))

    def create_pool(
        self,
        name: str,
        level: str | Level = "L1",
        *,
        mirrors: int | None = None,
        ec: str | None = None,
        keep_last: int | None = None,
        keep_every_steps: int | None = None,
        max_age_seconds: int | None = None,
        allow_degraded: bool = False,
        read_policy: str | ReadPolicy = ReadPolicy.ROUND_ROBIN,
        mirror_pool: str | None = None,
        mirror_ratio: float | None = None,
        nodes: Sequence[str] = (),
        quota_bytes: int | None = None,
    ) -> PoolInfo:
        """Make a pool. ``mirrors`` is for L2, ``ec`` (``"4+2"``) for L3; without retention rules everything is kept.

        ``allow_degraded``: saves go on with fewer copies when too few nodes are left. ``read_policy``: which holder is
        read first. ``mirror_pool`` and ``mirror_ratio`` (L3): the newest checkpoints are mirrored whole in that pool,
        up to this proportion of the bytes. ``nodes``: whose disks it uses; all, unless named. ``quota_bytes``: of its
        checkpoints, without their redundancy.
        """
        code = _parse_ec(ec)
        wanted = parse_level(level)
        pool = Pool(
            name=PoolName(check_name(name, "pool")),
            level=wanted,
            mirrors=_default_mirrors(wanted) if mirrors is None else _check_count("mirrors", mirrors, 1),
            data_fragments=code.data if code else 1,
            parity_fragments=code.parity if code else 0,
            retention=Retention(
                keep_last=_check_count("keep_last", keep_last or 0),
                keep_every_steps=_check_count("keep_every_steps", keep_every_steps or 0),
                max_age_seconds=_check_count("max_age_seconds", max_age_seconds or 0),
            ),
            allow_degraded=allow_degraded,
            read_policy=_parse_read_policy(read_policy),
            mirror_pool=mirror_pool or "",
            mirror_ratio=_check_ratio(mirror_ratio or 0.0),
            node_ids=tuple(NodeId(check_name(node_id, "node id")) for node_id in dict.fromkeys(nodes)),
            quota_bytes=_check_count("quota_bytes", quota_bytes or 0, below=2**63),
        )
        request = messages.CreatePoolRequest(request_id=random_id(), pool=pool_to(pool))
        return pool_info_from(self.process().control.call("create_pool", request).pool)

    def update_pool(
        self,
        name: str,
        *,
        level: str | Level | None = None,
        mirrors: int | None = None,
        ec: str | None = None,
        keep_last: int | None = None,
        keep_every_steps: int | None = None,
        max_age_seconds: int | None = None,
        allow_degraded: bool | None = None,
        read_policy: str | ReadPolicy | None = None,
        mirror_pool: str | None = None,
        mirror_ratio: float | None = None,
        quota_bytes: int | None = None,
    ) -> PoolInfo:
        """Change a pool: None leaves a setting as it is, 0 turns a retention rule, the mirror or the quota off.

        A pool that is given another level gets that level's usual number of copies unless ``mirrors`` says another.
        Saves follow at once; what is stored already is converted in the background, readable all the while.
        """
        request = messages.UpdatePoolRequest(request_id=random_id(), name=name)
        if level is not None:
            wanted = parse_level(level)
            request.level = level_to(wanted)
            if mirrors is None and self.pool(name).pool.level is not wanted:
                mirrors = _default_mirrors(wanted)
        if mirrors is not None:
            request.mirrors = _check_count("mirrors", mirrors, 1)
        code = _parse_ec(ec)
        if code:
            request.data_fragments, request.parity_fragments = code.data, code.parity
        if allow_degraded is not None:
            request.allow_degraded = allow_degraded
        if read_policy is not None:
            request.read_policy = read_policy_to(_parse_read_policy(read_policy))
        if keep_last is not None:
            request.keep_last = _check_count("keep_last", keep_last)
        if keep_every_steps is not None:
            request.keep_every_steps = _check_count("keep_every_steps", keep_every_steps)
        if max_age_seconds is not None:
            request.max_age_seconds = _check_count("max_age_seconds", max_age_seconds)
        if mirror_pool is not None:
            request.mirror_pool = mirror_pool
        if mirror_ratio is not None:
            request.mirror_ratio = _check_ratio(mirror_ratio)
        if quota_bytes is not None:
            request.quota_bytes = _check_count("quota_bytes", quota_bytes, below=2**63)
        return self._update(request)

    def expand_pool(self, name: str, nodes: Sequence[str]) -> PoolInfo:
        """Let a pool use these nodes too. One that was never told its nodes uses all of them anyway."""
        return self._update(
            messages.UpdatePoolRequest(request_id=random_id(), name=name, add_node_ids=_check_nodes(nodes))
        )

    def shrink_pool(self, name: str, nodes: Sequence[str]) -> PoolInfo:
        """Let a pool do without these nodes: its groups leave them now, and what they hold of it moves to others.

        RefusedError if too few would be left. From then on nodes that join are in it only by ``expand_pool``.
        """
        return self._update(
            messages.UpdatePoolRequest(request_id=random_id(), name=name, remove_node_ids=_check_nodes(nodes))
        )

    def _update(self, request: messages.UpdatePoolRequest) -> PoolInfo:
        return pool_info_from(self.process().control.call("update_pool", request).pool)

    def delete_pool(self, name: str) -> None:
        self.process().control.call("delete_pool", messages.DeletePoolRequest(request_id=random_id(), name=name))


def _parse_ec(text: str | None) -> Code | None:
    if text is None:
        return None
    code = parse_code(str(text))
    if code is None:
        raise InvalidArgumentError(f"{text!r} is not an erasure code: data+parity is expected, 4+2 for example")
    return code


def _default_mirrors(level: Level) -> int:
    return 2 if level is Level.L2 else 1


def _parse_read_policy(text: str | ReadPolicy) -> ReadPolicy:
    try:
        return ReadPolicy(str(text).replace("-", "_"))
    except ValueError:
        known = ", ".join(policy.value.replace("_", "-") for policy in ReadPolicy)
        raise InvalidArgumentError(f"{text!r} is not a read policy: give one of {known}") from None


def _check_count(name: str, value: int, least: int = 0, below: int = 2**32) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < below:
        raise InvalidArgumentError(f"{name} is {value!r}: give a whole number from {least} on")
    return value


def _check_ratio(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InvalidArgumentError(f"mirror_ratio is {value!r}: give a proportion from 0 to 1, 0.25 for example")
    return float(value)


def _check_nodes(nodes: Sequence[str]) -> list[str]:
    if isinstance(nodes, str) or not nodes:
        raise InvalidArgumentError(f"nodes is {nodes!r}: give the ids of one or more nodes")
    return list(dict.fromkeys(nodes))
