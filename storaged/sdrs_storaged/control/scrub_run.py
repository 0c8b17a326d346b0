"""One scrub, from where it stands to its end.

Checkpoint by checkpoint, shard by shard: what is on record is looked at where it lies. Then each node's list of
fragments is compared with the records. What is bad or missing goes off the record while others bring it back, and
repair makes it again; that is waited for, as long as it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from sdrs_core.checkpoints import Blob, Save, Shard
from sdrs_core.cluster import Node, NodeState
from sdrs_core.codes import parse_code
from sdrs_core.errors import CorruptDataError, SdrsError, StaleTermError
from sdrs_core.failed_restores import is_marked_by_restores, without_failures
from sdrs_core.ids import BlobId, SaveId
from sdrs_core.scrub import Depth, Pace
from sdrs_core.soundness import Look, counted
from sdrs_storaged.control import keys
from sdrs_storaged.control.catalog import Catalog
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.collector import Fragment
from sdrs_storaged.control.commits import Commits
from sdrs_storaged.control.findings import Judge, damage_text, forms_of
from sdrs_storaged.control.holders import find_blob
from sdrs_storaged.control.looks import Finding, Looks, Reading
from sdrs_storaged.control.members import Members
from sdrs_storaged.control.records import Records, Stored
from sdrs_storaged.control.references import References
from sdrs_storaged.control.scrub_record import Mending, Scrub, Stage
from sdrs_storaged.control.verifier import BlobReport, Verifier
from sdrs_storaged.logs import get_log

log = get_log("scrub")

_SHALLOW_PAGE_SHARDS = 50
_LOOK_AGAIN_SECONDS = 1.0
_HEAR_SECONDS = 30.0
# Without anything mended, how long repair is waited for: while it has other things to do, and when it has none.
_BUSY_PATIENCE_SECONDS = 600.0
_IDLE_PATIENCE_SECONDS = 30.0

Sleep = Callable[[float], Awaitable[None]]


class StoppedError(Exception):
    """An operator has ended the scrub."""


class FragmentLists(Protocol):
    async def list_fragments(self, node: Node, after: str) -> tuple[list[Fragment], str]: ...


@dataclass(frozen=True, slots=True)
class ScrubTools:
    """What every scrub of a controller works with."""

    records: Records
    members: Members
    catalog: Catalog
    commits: Commits
    looks: Looks
    judge: Judge
    verifier: Verifier
    references: References
    nodes: FragmentLists
    clock: Clock
    # Whether repair has anything to do.
    is_repairing: Callable[[], bool]
    bytes_per_second: int
    sleep: Sleep


class ScrubRun:
    def __init__(
        self,
        tools: ScrubTools,
        scrub: Scrub,
        keep: Callable[[bool], Awaitable[None]],
        check_stopped: Callable[[], None],
    ) -> None:
        """``keep`` writes down how far it is: now, or every so often. ``check_stopped`` raises StoppedError."""
        self._tools = tools
        self._scrub = scrub
        self._write = keep
        self._check_stopped = check_stopped
        self._has_news = False
        self._pace = Pace(tools.bytes_per_second)

    async def carry_on(self) -> None:
        self._check_stopped()
        await self._hear_nodes()
        scrub = self._scrub
        if scrub.stage is Stage.CHECKPOINTS:
            await self._look_at_checkpoints()
            # One job's fragments cannot be told from others' by their names.
            scrub.stage = Stage.MENDING if scrub.job else Stage.INVENTORIES
        if scrub.stage is Stage.INVENTORIES:
            await self._compare_inventories()
            scrub.stage = Stage.MENDING
        if scrub.stage is Stage.MENDING:
            await self._mend()

    async def _hear_nodes(self) -> None:
        """A controller that has just begun knows of nobody whether it is up: all would be undecided."""
        members, clock = self._tools.members, self._tools.clock
        until_seconds = clock.monotonic_seconds() + _HEAR_SECONDS
        while any(map(members.is_unheard, members.node_ids())) and clock.monotonic_seconds() < until_seconds:
            await self._tools.sleep(_LOOK_AGAIN_SECONDS)

    async def _keep(self) -> None:
        # What was taken off the record is found no more: it must not be forgotten either.
        has_news, self._has_news = self._has_news, False
        await self._write(has_news)
        self._check_stopped()

    # The catalog against the nodes

    async def _look_at_checkpoints(self) -> None:
        scrub, records = self._scrub, self._tools.records
        prefix = keys.saves_of_job(scrub.job) if scrub.job else keys.SAVES
        more = True
        while more:
            page, more = await records.page(prefix, Save, after=scrub.done_key)
            for stored in page:
                if stored.value.state.is_kept and not stored.value.evicted:
                    # P18: nothing is taken off a record against a past that a node knows better.
                    await records.check_leading()
                    await self._look_at(stored)
                    scrub.end_checkpoint(stored.key)
                else:
                    scrub.done_key = stored.key
                await self._keep()

    async def _look_at(self, stored: Stored[Save]) -> None:
        scrub, save = self._scrub, stored.value
        if not scrub.shard_key.startswith(keys.shards(save.save_id)):
            scrub.begin_checkpoint()
        look = self._look_deep if scrub.depth is Depth.DEEP else self._look_shallow
        # Reading a shard may take long: each is looked at as its record is then.
        limit = 1 if scrub.depth is Depth.DEEP else _SHALLOW_PAGE_SHARDS
        after, more = scrub.shard_key, True
        while more:
            try:
                page, more = await self._tools.catalog.shards(save.save_id, after=after, limit=limit)
            except CorruptDataError as error:
                # One bad record must not keep the others from being looked at.
                scrub.is_sound = False
                scrub.tell(f"{save.title}: {error.message}")
                return
            await look(stored, [shard.value for shard in page])
            after = scrub.shard_key = page[-1].key if page else after
            await self._keep()
        # What failed to restore has sound bytes as well: a verification that somebody asks for gives it a new chance.
        if (
            scrub.depth is Depth.DEEP
            and scrub.is_sound
            and save.damage
            and not is_marked_by_restores(save)
            and not await self._is_home_damaged(save)
        ):
            await self._tools.catalog.amend(stored.key, save.save_id, without_failures)

    async def _is_home_damaged(self, save: Save) -> bool:
        """What it refers to is read with its home, whose mark tells of it."""
        async for shard in self._tools.records.all(keys.shards(save.save_id), Shard):
            for home in {reference.home.save_id: reference.home for reference in shard.value.references}.values():
                stored = await self._tools.catalog.homes.save(save.job, home)
                if stored is None or stored.value.damage:
                    return True
        return False

    async def _look_deep(self, save: Stored[Save], shards: Sequence[Shard]) -> None:
        for shard in shards:
            for forms in forms_of(shard):
                await self._note(save, shard, forms, await self._read(shard, forms))

    async def _read(self, shard: Shard, forms: Sequence[Blob]) -> BlobReport:
        report = BlobReport([], [])
        limit = self._tools.bytes_per_second
        checking = self._tools.verifier.check(shard, forms, report, max_bytes_per_second=limit)
        async with aclosing(checking) as reading:
            async for part in reading:
                await self._count(part)
        return report

    async def _count(self, part: Reading) -> None:
        self._check_stopped()
        self._scrub.checked_bytes += part.checked_bytes
        rest_seconds = self._pace.spend(part.moved_bytes, self._tools.clock.monotonic_seconds())
        if rest_seconds > 0:
            await self._tools.sleep(rest_seconds)

    async def _look_shallow(self, save: Stored[Save], shards: Sequence[Shard]) -> None:
        places = [(blob, holder) for shard in shards for blob in shard.all_blobs for holder in counted(blob)]
        found: dict[BlobId, list[Finding]] = {}
        for finding in await self._tools.looks.look_up(places):
            found.setdefault(finding.blob.id, []).append(finding)
        for shard in shards:
            for forms in forms_of(shard):
                findings = [finding for blob in forms for finding in found.get(blob.id, ())]
                problems = await self._tools.judge.settle(shard, forms, findings)
                # What changed meanwhile is looked at more closely.
                report = await self._read(shard, forms) if problems is None else BlobReport(findings, problems)
                await self._note(save, shard, forms, report)

    async def _note(self, save: Stored[Save], shard: Shard, forms: Sequence[Blob], report: BlobReport) -> None:
        scrub = self._scrub
        scrub.checked_fragments += len(report.findings)
        scrub.note(save.value, report.problems)
        removed = Counter(problem.blob_id for problem in report.problems if problem.replaced)
        self._has_news |= bool(removed)
        for blob in forms:
            is_unproven = scrub.depth is Depth.DEEP and _is_unproven(blob, report.findings)
            wanted = max(len(counted(blob)), _total(blob) if is_unproven else 0)
            if wanted > len(counted(blob)) - removed[blob.id]:
                shard_key = keys.shard(shard.save_id, shard.rank)
                scrub.await_repair(Mending(save.key, shard_key, blob.id, wanted, removed[blob.id], is_unproven))
        damage = damage_text(report.problems)
        if damage:
            await self._mark(save, damage)

    async def _mark(self, save: Stored[Save], damage: str) -> None:
        self._scrub.damaged_checkpoints += not self._scrub.is_damaged
        self._scrub.is_damaged = True
        log.error("checkpoint_damaged", job=save.value.job, step=save.value.step, damage=damage)
        await self._tools.catalog.amend(save.key, save.value.save_id, lambda known: replace(known, damage=damage))

    # The nodes against the catalog

    async def _compare_inventories(self) -> None:
        for node in self._tools.members.nodes():
            if node.id > self._scrub.node_id:
                await self._compare(node)
                self._scrub.node_id = node.id
                await self._keep()

    async def _compare(self, node: Node) -> None:
        scrub = self._scrub
        if node.state is not NodeState.UP:
            scrub.tell(f"node {node.id} is down, so what it holds could not be compared with the catalog")
            return
        unknown = 0
        after = ""
        try:
            while True:
                fragments, after = await self._tools.nodes.list_fragments(node, after)
                unknown += len(await self._tools.references.unnamed(node.id, self._settled(fragments)))
                if not after:
                    break
        except StaleTermError:
            raise
        except SdrsError as error:
            scrub.tell(f"what node {node.id} holds could not be compared with the catalog: {error.message}")
        scrub.unknown_fragments += unknown
        if unknown:
            fragments_are = "1 fragment that is" if unknown == 1 else f"{unknown} fragments that are"
            scrub.tell(f"node {node.id} has {fragments_are} on no record: the collector lets them go after their grace")

    def _settled(self, fragments: Sequence[Fragment]) -> dict[FragmentName, SaveId]:
        """Not of saves that are under way (P13), nor those that were made since, perhaps by repair at this moment."""
        return {
            (fragment.blob_id, fragment.index): fragment.save_id
            for fragment in fragments
            if fragment.created_unix_ms < self._scrub.started_unix_ms
            and self._tools.commits.get(fragment.save_id) is None
        }

    # What repair makes of it

    async def _mend(self) -> None:
        scrub, clock = self._scrub, self._tools.clock
        moved_seconds = clock.monotonic_seconds()
        while scrub.mending:
            before = len(scrub.mending)
            waiting, scrub.mending = scrub.mending, []
            for mending in waiting:
                if not await self._is_mended(mending):
                    scrub.mending.append(mending)
            now_seconds = clock.monotonic_seconds()
            if len(scrub.mending) < before:
                moved_seconds = now_seconds
            await self._keep()
            patience_seconds = _BUSY_PATIENCE_SECONDS if self._tools.is_repairing() else _IDLE_PATIENCE_SECONDS
            if not scrub.mending or now_seconds - moved_seconds >= patience_seconds:
                return
            await self._tools.sleep(_LOOK_AGAIN_SECONDS)

    async def _is_mended(self, mending: Mending) -> bool:
        stored = await self._tools.records.get(mending.shard_key, Shard)
        blob = find_blob(stored.value, mending.blob_id) if stored else None
        if stored is None or blob is None:
            return True  # it was collected, or is stored in another form by now
        if len(counted(blob)) < mending.fragment_count:
            return False
        self._scrub.repaired_fragments += mending.removed_count
        save = await self._tools.records.get(mending.save_key, Save) if mending.is_unproven else None
        if save and save.value.save_id == stored.value.save_id:
            # By now its parity can be computed anew.
            forms = next(forms for forms in forms_of(stored.value) if blob in forms)
            report = await self._read(stored.value, forms)
            proven = [replace(found, is_unproven=False) for found in report.findings]
            await self._note(save, stored.value, forms, BlobReport(proven, report.problems))
        return True


def _total(blob: Blob) -> int:
    code = parse_code(blob.code)
    return code.total if code else 0


def _is_unproven(blob: Blob, findings: Sequence[Finding]) -> bool:
    """Whether some parity could not be computed anew, and can be once repair has made what is lacking; what is out of
    reach now may be so for long.
    """
    mine = [found for found in findings if found.blob.id == blob.id]
    return any(found.is_unproven for found in mine) and all(found.look is not Look.UNDECIDED for found in mine)
