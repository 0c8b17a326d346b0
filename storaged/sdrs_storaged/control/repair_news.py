"""What repair tells the history of the cluster: what is out of reach or back, what was made, which levels rose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sdrs_core.checkpoints import Save
from sdrs_core.ids import SaveId
from sdrs_storaged.control.events import Events
from sdrs_storaged.control.progress import RepairTotals
from sdrs_storaged.logs import get_log

log = get_log("repairer")

_MAX_NAMED = 3


class RepairNews:
    def __init__(self, events: Events) -> None:
        self._events = events

    async def tell_unavailable(self, before: Mapping[SaveId, Save], now: Mapping[SaveId, Save]) -> None:
        lost = [save for save_id, save in now.items() if save_id not in before]
        back = [save for save_id, save in before.items() if save_id not in now]
        if lost:
            log.error("checkpoints_unavailable", names=_names(lost), checkpoint_count=len(lost))
            await self._events.record("checkpoints_unavailable", f"too little of some blob is in reach: {_names(lost)}")
        if back:
            log.info("checkpoints_available", names=_names(back), checkpoint_count=len(back))
            await self._events.record("checkpoints_available", f"no longer unavailable: {_names(back)}")

    async def tell_done(self, before: RepairTotals, now: RepairTotals, raised: Sequence[Save]) -> None:
        made = now.done_blobs - before.done_blobs
        if made:
            made_bytes = now.done_bytes - before.done_bytes
            log.info("copies_made", blob_count=made, size_bytes=made_bytes, waiting_blobs=now.waiting_blobs)
            left = f", {now.waiting_blobs} blobs wait" if now.waiting_blobs else ""
            copies = "1 copy" if made == 1 else f"{made} copies"
            await self._events.record("repair_done", f"{copies} made, {made_bytes} bytes{left}")
        if raised:
            await self._events.record("level_raised", f"all copies there: {_names(raised)}")


def _names(saves: Sequence[Save]) -> str:
    named = ", ".join(save.title for save in saves[:_MAX_NAMED])
    return f"{named} and {len(saves) - _MAX_NAMED} more" if len(saves) > _MAX_NAMED else named
