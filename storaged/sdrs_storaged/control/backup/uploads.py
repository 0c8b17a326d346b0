"""Content into a bucket, through nodes that hold it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace

from sdrs_core.checkpoints import Blob, Holder
from sdrs_core.cluster import Node, NodeState
from sdrs_core.codes import parse_code
from sdrs_core.errors import CorruptDataError, NotFoundError, SdrsError, StaleTermError, UnavailableError
from sdrs_core.ids import NodeId
from sdrs_core.soundness import counted, is_readable
from sdrs_storaged.control.backup.orders import BackupCalls, Upload, UploadProgress
from sdrs_storaged.control.backup.runs import RunProgress, StoppedError
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records

_LOOK_SECONDS = 1.0
_CALL_OFF_SECONDS = 5.0
# Longer than any pause on purpose, and than a store is waited for.
_STALL_SECONDS = 600.0
# What a node says of errors that are about the blob.
_SOURCE_FACT = "source"


class UnreadableError(SdrsError):
    """The cluster cannot read it now: this checkpoint is passed over, the others are not. It never crosses the wire."""

    reason = "UNREADABLE"

    def __init__(self, message: str, *, is_away: bool) -> None:
        """``is_away``: nothing is wrong with it, but nodes that have it are not there now."""
        super().__init__(message)
        self.is_away = is_away


@dataclass(frozen=True, slots=True)
class _Place:
    """Who is asked, and what it reads from where."""

    node: Node
    blob: Blob
    sources: tuple[tuple[Node, Holder], ...]


class Uploads:
    def __init__(self, records: Records, members: Members, nodes: BackupCalls) -> None:
        self._records = records
        self._members = members
        self._nodes = nodes
        # How many bytes each node is at.
        self._load: Counter[NodeId] = Counter()

    async def describe(self, forms: Sequence[Blob]) -> tuple[bytes, str]:
        """The table of its plain blocks, and its identity (P23). ``forms``: the same content under different ids."""
        # What is on record of a compressed blob is that of what was saved.
        known = next((blob.blake3 for blob in forms if blob.blake3 and not blob.packing), "")
        failures: list[SdrsError] = []
        for place in self._places(forms):
            order = await self._members.order(place.node.id)
            try:
                table, identity = await self._nodes.describe_blob(
                    place.node, place.blob, place.sources, order, wants_blake3=not known
                )
            except StaleTermError:
                raise
            except SdrsError as error:
                failures.append(error)
            else:
                return table, known or identity
        raise _unreadable(forms[0], failures)

    async def upload(self, run: RunProgress, forms: Sequence[Blob], order: Upload, limit: Callable[[], int]) -> None:
        """It is in the bucket when this returns. A node that fails is taken over from by another, which goes on with
        what is there of it.
        """
        failures: list[SdrsError] = []
        for place in self._places(forms):
            try:
                async with self._loaded(place), _Counting(run) as counting:
                    await self._at(run, place, replace(order, blob=place.blob), limit, counting)
                    return
            except (StaleTermError, StoppedError):
                raise
            except SdrsError as error:
                failures.append(error)
        of_target = [error for error in failures if not _is_of_source(error)]
        if of_target:
            raise of_target[0]
        raise _unreadable(forms[0], failures)

    @asynccontextmanager
    async def _loaded(self, place: _Place) -> AsyncIterator[None]:
        self._load[place.node.id] += place.blob.size_bytes
        try:
            yield
        finally:
            self._load[place.node.id] -= place.blob.size_bytes

    async def _at(
        self, run: RunProgress, place: _Place, upload: Upload, limit: Callable[[], int], counting: _Counting
    ) -> None:
        """It may take hours. A node that went down is not waited for. When the limit changes the order is given again:
        who is at it goes on as fast as it is told then.
        """
        clock = asyncio.get_running_loop().time
        moved = clock()
        while True:
            # A node may not have heard of a newer controller yet (P14).
            await self._records.check_leading()
            asked = replace(upload, max_bytes_per_second=limit())
            calling = asyncio.ensure_future(self._listen(place, asked, counting))
            try:
                while limit() == asked.max_bytes_per_second:
                    heard = counting.heard
                    await asyncio.wait([calling], timeout=_LOOK_SECONDS)
                    if calling.done():
                        return calling.result()
                    if counting.heard != heard:
                        moved = clock()
                    if self._members.node(place.node.id).state is NodeState.DOWN:
                        raise UnavailableError(
                            f"node {place.node.id} went down while it uploaded blob {upload.blob.id}",
                            source=place.node.id,
                        )
                    if clock() - moved > _STALL_SECONDS:
                        raise UnavailableError(
                            f"node {place.node.id} got no byte into backup target {upload.target.name} for "
                            f"{_STALL_SECONDS:.0f} s"
                        )
                    if run.record.is_stopping:
                        await self._call_off(place, asked)
                        run.check()
            finally:
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)

    async def _listen(self, place: _Place, upload: Upload, counting: _Counting) -> None:
        order = await self._members.order(place.node.id)
        async with aclosing(self._nodes.upload_blob(place.node, upload, place.sources, order)) as answers:
            async for answer in answers:
                counting.note(answer)
                if answer.is_done:
                    return
        raise UnavailableError(f"node {place.node.id} ended the upload of blob {upload.blob.id} without an answer")

    async def _call_off(self, place: _Place, upload: Upload) -> None:
        try:
            async with asyncio.timeout(_CALL_OFF_SECONDS):
                await self._listen(place, replace(upload, is_called_off=True), _Counting(None))
        except (SdrsError, TimeoutError):
            return  # as it is answered

    def _places(self, forms: Sequence[Blob]) -> list[_Place]:
        """Nearest first: who has a whole copy, then who has plain blocks; of these, who has the least to do."""
        found: list[tuple[tuple[int, int, int], _Place]] = []
        for number, blob in enumerate(forms):
            live = [(node, holder) for holder in counted(blob) if (node := self._live(holder)) is not None]
            if not is_readable(blob, [holder for _, holder in live]):
                continue
            code = parse_code(blob.code)
            for node, holder in live:
                # What it has itself is read first.
                sources = tuple(sorted(live, key=lambda source: source[0].id != node.id))
                distance = 0 if code is None else 1 if holder.fragment_index < code.data else 2
                found.append(((distance, self._load[node.id], number), _Place(node, blob, sources)))
        found.sort(key=lambda one: one[0])
        return list({place.node.id: place for _, place in reversed(found)}.values())[::-1]

    def _live(self, holder: Holder) -> Node | None:
        try:
            node = self._members.node(holder.node_id)
        except NotFoundError:
            return None
        return node if node.state is NodeState.UP else None


class _Counting:
    """What an order adds to its run; taken back if nothing comes of it."""

    def __init__(self, run: RunProgress | None) -> None:
        self._run = run
        self.heard = UploadProgress(0, 0, False)

    async def __aenter__(self) -> _Counting:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind and self._run:
            self._run.record.done_bytes -= self.heard.done_bytes

    def note(self, answer: UploadProgress) -> None:
        if self._run:
            self._run.record.done_bytes += answer.done_bytes - self.heard.done_bytes
            self._run.record.moved_bytes += max(0, answer.sent_bytes - self.heard.sent_bytes)
        self.heard = answer


def _is_of_source(error: SdrsError) -> bool:
    """Or of the node that was asked: another one may do. What the bucket says is heard by all nodes alike."""
    return _SOURCE_FACT in error.facts or "peer" in error.facts or isinstance(error, CorruptDataError)


def _unreadable(blob: Blob, failures: Sequence[SdrsError]) -> UnreadableError:
    told = "; ".join(dict.fromkeys(error.message for error in failures)) or "no node that holds enough of it is up"
    is_away = not any(isinstance(error, CorruptDataError | NotFoundError) for error in failures)
    return UnreadableError(f"blob {blob.id} cannot be read now: {told}", is_away=is_away)
