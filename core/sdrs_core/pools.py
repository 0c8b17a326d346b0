"""What operators make of a pool: its settings as they change, and whether its nodes suffice for them.

Values in, values or reasons out; the controller stores what comes of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import Group, Node, Pool, ReadPolicy, check_pool
from sdrs_core.codes import Code
from sdrs_core.errors import InvalidArgumentError, NotFoundError, RefusedError
from sdrs_core.ids import DiskId, NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_core.redundancy import Form, place, standing
from sdrs_core.shares import least_standing

# What is offered where another code does not fit, the widest first.
_USUAL_CODES = (Code(8, 3), Code(6, 3), Code(4, 2), Code(2, 1))
# A quota that is filled so far is warned of.
NEAR_QUOTA = 0.85


@dataclass(frozen=True, slots=True)
class PoolChange:
    """None leaves a setting as it is."""

    level: Level | None = None
    mirrors: int | None = None
    code: Code | None = None
    # By name of the rule.
    retention: Mapping[str, int] = field(default_factory=dict)
    allow_degraded: bool | None = None
    read_policy: ReadPolicy | None = None
    # An empty name or a ratio of 0: it is not mirrored to another pool any more.
    mirror_pool: str | None = None
    mirror_ratio: float | None = None
    quota_bytes: int | None = None
    add_nodes: tuple[NodeId, ...] = ()
    remove_nodes: tuple[NodeId, ...] = ()


def amended(pool: Pool, change: PoolChange, nodes: Collection[NodeId]) -> Pool:
    """The pool with the change made, checked; ``nodes`` are those of the cluster.

    What belongs to the level that is left goes with it, unless the change says otherwise.
    """
    base = pool if change.level in (None, pool.level) else _at_level(pool, change.level or pool.level)
    code = change.code
    mirror_pool = base.mirror_pool if change.mirror_pool is None else change.mirror_pool
    mirror_ratio = base.mirror_ratio if change.mirror_ratio is None else change.mirror_ratio
    if change.mirror_pool == "" or change.mirror_ratio == 0:
        mirror_pool, mirror_ratio = "", 0.0
    return check_pool(
        replace(
            base,
            mirrors=base.mirrors if change.mirrors is None else change.mirrors,
            data_fragments=code.data if code else base.data_fragments,
            parity_fragments=code.parity if code else base.parity_fragments,
            allow_degraded=base.allow_degraded if change.allow_degraded is None else change.allow_degraded,
            read_policy=change.read_policy or base.read_policy,
            retention=replace(base.retention, **change.retention),
            mirror_pool=mirror_pool,
            mirror_ratio=mirror_ratio,
            quota_bytes=base.quota_bytes if change.quota_bytes is None else change.quota_bytes,
            node_ids=_nodes_after(pool, change, nodes),
        )
    )


def _at_level(pool: Pool, level: Level) -> Pool:
    plain = replace(pool, level=level, data_fragments=1, parity_fragments=0, mirror_pool="", mirror_ratio=0.0)
    return replace(
        plain,
        mirrors=max(2, pool.mirrors) if level is Level.L2 else 1,
        allow_degraded=pool.allow_degraded and level is not Level.L1,
    )


def _nodes_after(pool: Pool, change: PoolChange, nodes: Collection[NodeId]) -> tuple[NodeId, ...]:
    check_nodes((*change.add_nodes, *change.remove_nodes), nodes)
    before = pool.node_ids
    if before:
        before = tuple(dict.fromkeys((*before, *change.add_nodes)))
    if not change.remove_nodes:
        return before
    left = tuple(node_id for node_id in before or sorted(nodes) if node_id not in change.remove_nodes)
    if not left:
        # No names would stand for all nodes.
        raise RefusedError(f'pool "{pool.name}" would be left without a node: delete it, or leave one in it')
    # Without having lost one it goes on with whatever nodes there are.
    return left if before or len(left) < len(nodes) else ()


def check_nodes(named: Iterable[NodeId], nodes: Collection[NodeId]) -> None:
    unknown = [node_id for node_id in named if node_id not in nodes]
    if unknown:
        known = ", ".join(sorted(nodes)) or "none yet"
        raise NotFoundError(f'node "{unknown[0]}" does not exist; known nodes: {known}', node=unknown[0])


def reshapes(before: Pool, after: Pool) -> bool:
    """Whether a change moves groups or data: saves under way are looked at anew (P7)."""
    return (before.level, before.member_count, before.code, before.node_ids) != (
        after.level,
        after.member_count,
        after.code,
        after.node_ids,
    )


def needs_more_domains(pool: Pool, domains: Collection[str], *, without: Iterable[NodeId] = ()) -> str:
    """Why these failure domains, one entry a node, are too few for the pool; empty if they are not."""
    found = len(set(domains))
    missing = pool.member_count - found
    if missing <= 0 or (pool.member_count == 1 and not without):
        return ""
    what = str(pool.code) if pool.code else f"{pool.mirrors} mirrors" if pool.mirrors > 1 else "one copy"
    has = f"without {', '.join(without)} it has" if without else "it has"
    # Nodes there are, but some share their domain.
    apart = f" with {'its' if missing == 1 else 'their'} own node.domain" if len(domains) > found else ""
    needs = "1 failure domain" if pool.member_count == 1 else f"{pool.member_count} failure domains"
    return (
        f'pool "{pool.name}" needs {needs} for {what}, {has} {found}: '
        f"add {missing} {'node' if missing == 1 else 'nodes'}{apart}{_alternative(pool, found)}"
    )


def _alternative(pool: Pool, domain_count: int) -> str:
    if pool.code:
        fitting = [code for code in _USUAL_CODES if code.total <= domain_count]
        return f" or use --ec {fitting[0]}" if fitting else " or use --level L2" if domain_count == 2 else ""
    return f" or use --mirrors {domain_count}" if domain_count > 1 else ""


def check_mirror(pool: Pool, pools: Mapping[PoolName, Pool]) -> None:
    """The pool that mirrors another exists, and no chain of mirrors leads back."""
    if not pool.mirror_pool:
        return
    chain, name = [pool.name], PoolName(pool.mirror_pool)
    while name:
        if name not in pools:
            raise NotFoundError(
                f'pool "{name}" does not exist, it cannot mirror pool "{pool.name}": make it first, or name another',
                pool=name,
            )
        chain.append(name)
        if name == pool.name:
            raise InvalidArgumentError(
                f'pool "{pool.name}" would mirror itself ({" -> ".join(chain)}): name a pool that is not mirrored '
                "back to it"
            )
        name = PoolName(pools[name].mirror_pool)


def quota_refusal(pool: Pool, *, used_bytes: int, reserved_bytes: int, wanted_bytes: int) -> str:
    """Why a shard of this size may not be saved; empty if it may. Checkpoints count once, without redundancy."""
    # One that did not tell its size is let in while there is any room.
    if not pool.quota_bytes or used_bytes + reserved_bytes + max(1, wanted_bytes) <= pool.quota_bytes:
        return ""
    under_way = f" and {in_mib(reserved_bytes)} are being saved" if reserved_bytes else ""
    wanted = f", {in_mib(wanted_bytes)} more were asked for" if wanted_bytes else ""
    return (
        f'pool "{pool.name}" is at its quota: {in_mib(used_bytes)} of {in_mib(pool.quota_bytes)} are used{under_way}'
        f"{wanted}. Delete checkpoints (sdrs ckpt delete), let it keep fewer (sdrs pool set {pool.name} "
        f"--keep-last N), or raise it: sdrs pool set {pool.name} --quota SIZE"
    )


def quota_warning(pool: Pool, used_bytes: int) -> str:
    """What an operator should know of the quota; empty: nothing."""
    if not pool.quota_bytes or used_bytes < NEAR_QUOTA * pool.quota_bytes:
        return ""
    percent = 100 * used_bytes / pool.quota_bytes
    is_full = used_bytes >= pool.quota_bytes
    what = "is at its quota, saves are refused" if is_full else "is near its quota"
    return f'pool "{pool.name}" {what}: {in_mib(used_bytes)} of {in_mib(pool.quota_bytes)} are used ({percent:.0f} %)'


def room_bytes(group: Group, pool: Pool, nodes: Mapping[NodeId, Node]) -> int:
    """How large a shard all members of a group can take, as far as their disks told."""
    return min(_rooms(group, nodes).values(), default=0) * (pool.code.data if pool.code else 1)


def fits(size_bytes: int, group: Group, pool: Pool, nodes: Mapping[NodeId, Node]) -> bool:
    """Whether a group can take a shard of this size: of a code also without members that have no room for theirs, if
    the others make up for them (P10).
    """
    if room_bytes(group, pool, nodes) >= size_bytes:
        return True
    code = pool.code
    if code is None:
        return False
    rooms, fragment_bytes = _rooms(group, nodes), -(-size_bytes // code.data)
    domains = {member: nodes[member].domain for member in rooms}
    form = Form(str(code), code.data, code.total, spread=True)
    # One that takes several needs room for as many.
    for most in range(1, max(1, form.spare) + 1):
        able = [member for member, room in rooms.items() if room >= most * fragment_bytes]
        if group.primary not in able:
            return False
        members = (group.primary, *(member for member in able if member != group.primary))
        places = place(form, members, domains, crowded=pool.allow_degraded)
        holders = [Holder(node, DiskId(""), share, "") for share, node in places.items()]
        is_within = max(Counter(places.values()).values(), default=0) <= most
        if is_within and standing(form, holders, domains) >= least_standing(pool):
            return True
    return False


def _rooms(group: Group, nodes: Mapping[NodeId, Node]) -> dict[NodeId, int]:
    return {
        member: sum(max(0, d.capacity_bytes - d.used_bytes) for d in nodes[member].disks if d.state.takes_writes)
        for member in group.members
        if member in nodes
    }


def in_mib(count: int) -> str:
    if count < 1 << 20:
        return f"{count / 1024:.1f} KiB"
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"
