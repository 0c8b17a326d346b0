"""Checkpoints of a Harness that refer to each other: blob 0 is each one's own, blob 1 is the same in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sdrs_core.checkpoints import Blob, Reference, Save, SaveState, Shard
from sdrs_core.cluster import DEFAULT_POOL
from sdrs_core.errors import SdrsError
from sdrs_core.references import NewBlob, decide_references
from sdrs_storaged.control import keys
from sdrs_storaged.control.homes import Referral
from sdrs_storaged.control.receipts import Receipt
from sdrs_storaged.control.saves import Begun
from tests.support.control import BLOB_BYTES, JOB, Harness

FROZEN = "frozen"


def referring_receipt(
    harness: Harness, begun: Begun, *, rank: int = 0, offers: Sequence[Reference] = (), blob_bytes: int = BLOB_BYTES
) -> Receipt:
    """With a reference to what is offered, or with the blob itself."""
    blake3 = f"blake3 of {FROZEN} {rank}"
    decided = decide_references(offers, [NewBlob(1, blob_bytes, blake3)], least_bytes=1)
    receipt = harness.receipt(begun, rank=rank, content=FROZEN, blob_count=1 if decided else 2, blob_bytes=blob_bytes)
    shard = receipt.shard
    blobs = tuple(replace(blob, blake3=blake3 if blob.ordinal else "") for blob in shard.blobs)
    shard = replace(shard, blobs=blobs, size_bytes=2 * blob_bytes, references=tuple(decided.values()))
    return replace(receipt, shard=shard)


async def register(harness: Harness, receipt: Receipt) -> SaveState:
    primary = harness.controller.members.group(receipt.group_id).primary
    [outcome] = await harness.register_receipts(receipt, node_id=primary)
    if isinstance(outcome, SdrsError):
        raise outcome
    return outcome


async def save_referring(
    harness: Harness,
    step: int,
    *,
    world_size: int = 1,
    blob_bytes: int = BLOB_BYTES,
    refer: bool = True,
    pool: str = DEFAULT_POOL,
    **given: object,
) -> Save:
    begun = None
    for rank in range(world_size):
        begun = await harness.begin(step, rank=rank, world_size=world_size, may_refer=refer, pool=pool, **given)
        if begun.registered is None:
            receipt = referring_receipt(harness, begun, rank=rank, offers=begun.offers, blob_bytes=blob_bytes)
            await register(harness, receipt)
    assert begun
    return await harness.find(begun)


async def shared_blob(harness: Harness, home: Save, rank: int = 0) -> Blob:
    """On the record of the save that stores it."""
    return next(blob for blob in (await harness.shards(home))[rank].blobs if blob.ordinal == 1)


async def resolved(harness: Harness, step: int, rank: int = 0) -> Shard:
    """As its readers see it."""
    catalog = harness.controller.catalog
    save = (await catalog.get(JOB, step)).value
    return await catalog.homes.resolved(await catalog.shard(save.save_id, rank))


async def is_readable(harness: Harness, step: int) -> bool:
    """Whether some holder really has each blob."""
    return all(
        any((blob.id, h.fragment_index) in harness.nodes.names(h.node_id) for h in blob.holders if not h.dropping)
        for blob in (await resolved(harness, step)).blobs
    )


async def referrals(harness: Harness) -> set[tuple[str, str]]:
    """Who is on record to be referred to by whom."""
    found = [stored.key async for stored in harness.controller.records.all(keys.REFERENCES, Referral)]
    return {(key.split("/")[1], key.split("/")[2]) for key in found}
