"""The part of the service ``Control`` that is about scrubs: start one, stop it, see how far it is."""

from __future__ import annotations

from sdrs_core.errors import InvalidArgumentError
from sdrs_core.scrub import Depth
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_storaged.control.scrub import Scrubber
from sdrs_storaged.control.scrub_record import Scrub

_DEPTHS = {pb.SCRUB_DEPTH_SHALLOW: Depth.SHALLOW, pb.SCRUB_DEPTH_DEEP: Depth.DEEP}
_MESSAGES = {depth: message for message, depth in _DEPTHS.items()}
_TRIGGER = "an operator"


class ScrubService:
    def __init__(self, scrubber: Scrubber) -> None:
        self._scrubber = scrubber

    async def start_scrub(self, request: pb.StartScrubRequest) -> pb.StartScrubResponse:
        if request.depth not in _DEPTHS:
            raise InvalidArgumentError("a scrub is shallow or deep: say which")
        scrub = await self._scrubber.start(
            _DEPTHS[request.depth], request.job, trigger=_TRIGGER, request_id=request.request_id
        )
        return pb.StartScrubResponse(scrub=self._status(scrub))

    async def stop_scrub(self, request: pb.StopScrubRequest) -> pb.StopScrubResponse:
        return pb.StopScrubResponse(scrub=self._status(await self._scrubber.stop()))

    async def get_scrub(self, request: pb.GetScrubRequest) -> pb.GetScrubResponse:
        record = await self._scrubber.status()
        return pb.GetScrubResponse(
            scrub=self._status(record.scrub) if record.scrub else None,
            shallow_done_unix_ms=record.shallow_done_unix_ms,
            deep_done_unix_ms=record.deep_done_unix_ms,
        )

    def _status(self, scrub: Scrub) -> pb.ScrubStatus:
        return pb.ScrubStatus(
            id=scrub.id,
            depth=_MESSAGES[scrub.depth],
            job=scrub.job or "",
            trigger=scrub.trigger,
            started_unix_ms=scrub.started_unix_ms,
            ended_unix_ms=scrub.ended_unix_ms,
            checked_checkpoints=scrub.checked_checkpoints,
            total_checkpoints=scrub.total_checkpoints,
            checked_fragments=scrub.checked_fragments,
            checked_bytes=scrub.checked_bytes,
            bytes_per_second=self._scrubber.bytes_per_second if scrub.is_under_way else 0,
            bad_fragments=scrub.bad_fragments,
            missing_fragments=scrub.missing_fragments,
            repaired_fragments=scrub.repaired_fragments,
            undecided_fragments=scrub.undecided_fragments,
            unknown_fragments=scrub.unknown_fragments,
            damaged_checkpoints=scrub.damaged_checkpoints,
            problems=scrub.problems,
            stopped=scrub.is_stopped,
        )
