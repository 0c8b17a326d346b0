"""Pools in words: what they store and keep, and what it means to lower one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sdrs.cli.amounts import format_bytes, format_duration
from sdrs.cli.output import Column, Listing
from sdrs_core.cluster import Node, Pool, Retention
from sdrs_core.levels import Level

if TYPE_CHECKING:
    from sdrs import PoolInfo


def pool_listing(pools: Sequence[PoolInfo]) -> Listing:
    columns = [
        Column("POOL"),
        Column("LEVEL"),
        Column("STORES"),
        Column("CHECKPOINTS", is_number=True),
        Column("USED", is_number=True),
        Column("QUOTA", is_number=True),
        Column("NODES"),
        Column("KEEPS", folds=True),
    ]
    rows = [
        (
            info.pool.name,
            str(info.pool.level),
            stores(info.pool),
            str(info.checkpoint_count),
            format_bytes(info.used_bytes),
            format_bytes(info.pool.quota_bytes) if info.pool.quota_bytes else "none",
            str(len(info.pool.node_ids)) if info.pool.node_ids else "all",
            keeps(info.pool.retention),
        )
        for info in pools
    ]
    return Listing(columns, rows, "there are no pools: make one with `sdrs pool create`")


def pool_facts(info: PoolInfo) -> dict[str, str]:
    pool = info.pool
    facts = {
        "pool": pool.name,
        "level": str(pool.level),
        "stores": stores(pool),
        "when nodes are short": _when_short(pool),
        "reads": f"{pool.read_policy.value.replace('_', '-')} over the holders",
        "keeps": keeps(pool.retention),
        "nodes": ", ".join(pool.node_ids) or "all",
        "checkpoints": str(info.checkpoint_count),
        "used": format_bytes(info.used_bytes),
        "quota": _quota(info),
    }
    if pool.mirror_pool or info.mirrored_count:
        where = f" in {pool.mirror_pool}" if pool.mirror_pool else ""
        facts["mirrored"] = f"{info.mirrored_count} checkpoints, {format_bytes(info.mirrored_bytes)}{where}"
    return facts


def stores(pool: Pool) -> str:
    if pool.code is None:
        return "one copy" if pool.mirrors == 1 else f"{pool.mirrors} copies"
    mirrored = f", newest {100 * pool.mirror_ratio:g} % mirrored to {pool.mirror_pool}" if pool.mirror_pool else ""
    return f"{pool.code} erasure code{mirrored}"


def keeps(retention: Retention) -> str:
    if retention.keeps_all:
        return "everything"
    rules = []
    if retention.keep_last:
        rules.append(f"the last {retention.keep_last}")
    if retention.keep_every_steps:
        rules.append(f"every {retention.keep_every_steps} steps")
    if retention.max_age_seconds:
        rules.append(f"nothing older than {format_duration(retention.max_age_seconds)}")
    return ", ".join(rules)


def _when_short(pool: Pool) -> str:
    if pool.level is Level.L1:
        return "one copy is all it asks for"
    if pool.allow_degraded:
        return "saves go on with fewer copies"
    if pool.level is Level.L3:
        return "saves go on, degraded, while any one failure domain may be lost"
    return "saves wait or are refused"


def _quota(info: PoolInfo) -> str:
    if not info.pool.quota_bytes:
        return "none"
    percent = 100 * info.used_bytes / info.pool.quota_bytes
    return f"{format_bytes(info.pool.quota_bytes)}, {percent:.0f} % used"


def lowering(before: Pool, level: Level) -> str:
    """What it means to bring a pool down to ``level``."""
    if level is Level.L1:
        meaning = "each new checkpoint is on one node alone, not readable while that is down and lost with its disk"
    else:
        meaning = (
            f"new checkpoints are whole copies on different nodes, where {before.code} survives the loss of any "
            f"{before.parity_fragments} nodes for less room"
        )
    kept = "What is stored already is converted in the background, and keeps two copies at least."
    return f'This lowers pool "{before.name}" from {before.level} to {level}: {meaning}. {kept}'


def shared_nodes(one: Pool, other: Pool, nodes: Collection[Node]) -> list[str]:
    """Whose loss hits both."""
    return sorted(node.id for node in nodes if one.has_node(node.id) and other.has_node(node.id))
