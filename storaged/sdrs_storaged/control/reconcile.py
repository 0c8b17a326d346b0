"""A catalog out of what is left: the newest copy of it, corrected and completed by what nodes hold now (P19).

What the copy knows is kept, with the holders that are really there; those on nodes that were not asked stay as they
were, since such a node may return. Saves that only fragments tell of become checkpoints if all ranks and blobs are
there and all fragments agree. Those that are incomplete go into the trash, where the grace period keeps their fragments
for an operator to look at; those of which nobody can tell (files of earlier versions) are set aside and held.

Blocking: it runs in a thread, on the staged records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from sdrs_core.attempts import Job
from sdrs_core.checkpoints import Blob, ContentKind, Reference, Save, SaveState, Shard
from sdrs_core.cluster import DEFAULT_POOL, MAX_MIRRORS, Pool
from sdrs_core.errors import InvalidArgumentError
from sdrs_core.ids import JobName, NodeId, PoolName, SaveId, check_name, random_id
from sdrs_core.levels import Level
from sdrs_core.redundancy import worth
from sdrs_core.soundness import counted, is_readable
from sdrs_storaged.control import keys
from sdrs_storaged.control.assembly import assemble
from sdrs_storaged.control.corrections import Corrections, Problems
from sdrs_storaged.control.evidence import Evidence, Row
from sdrs_storaged.control.findings import forms_of
from sdrs_storaged.control.lost_pools import LostPools
from sdrs_storaged.control.records import parse, put
from sdrs_storaged.control.staging import Staging
from sdrs_storaged.control.tables import Layout, NodeRecord, PoolRecord

_NO_TIME_YET = 2**63
_REBUILT = "catalog rebuilt from fragments"


@dataclass(slots=True)
class _Found:
    """What the shards of one save amount to, in a pool if that is known."""

    pool: Pool | None
    domains: Mapping[NodeId, str]
    ranks: int = 0
    size_bytes: int = 0
    referenced_bytes: int = 0
    spared_bytes: int = 0
    copies: int = MAX_MIRRORS
    worth: Level = Level.L3
    is_degraded: bool = False
    troubles: list[str] = field(default_factory=list)

    def count(self, shard: Shard, trouble: str) -> None:
        self.ranks += 1
        self.size_bytes += shard.size_bytes
        self.referenced_bytes += shard.referenced_bytes
        self.spared_bytes += shard.spared_bytes
        self.copies = min([self.copies, *(_copies(blob) for blob in shard.blobs)])
        if self.pool:
            level, is_degraded = worth(self.pool, shard.blobs, self.domains)
            self.worth = min(self.worth, level)
            self.is_degraded |= is_degraded
        if trouble and len(self.troubles) < 3:
            self.troubles.append(trouble)

    @property
    def level(self) -> Level:
        if self.pool:
            # Some blob is only in the pool that mirrors it: repair has it here again.
            return max(self.worth, Level.L1)
        return Level.L2 if self.copies > 1 else Level.L1


class Reconciler:
    def __init__(
        self, staging: Staging, evidence: Evidence, asked: frozenset[NodeId], problems: Problems, *, now_unix_ms: int
    ) -> None:
        self._staging = staging
        self._evidence = evidence
        self._asked = asked
        self._problems = problems
        self._now_unix_ms = now_unix_ms
        self._lost_pools = LostPools(evidence)
        self._pools: dict[PoolName, Pool | None] = {}
        self._domains = {
            (node := parse(key, value, NodeRecord).node).id: node.domain for key, value in staging.all_sync(keys.NODES)
        }
        self._corrections = Corrections(evidence, asked, self._domains, problems)

    def run(self, progress: Callable[[int], None]) -> int:
        """The number of checkpoints in the catalog that is now staged."""
        self._correct_holders()
        self._settle_pending()
        for count, save_id in enumerate(self._evidence.save_ids()):
            progress(count)
            if not self._is_known(save_id):
                self._bring_back(save_id)
        self._make_pools()
        return sum(parse(key, value, Save).state.is_readable for key, value in self._staging.all_sync(keys.SAVES))

    # What the copy knows

    def _correct_holders(self) -> None:
        self._staging.database.execute("CREATE TABLE known (save_id TEXT PRIMARY KEY, state TEXT NOT NULL, title TEXT)")
        for prefix in (keys.SAVES, keys.TRASH):
            for key, value in self._staging.all_sync(prefix):
                save = parse(key, value, Save)
                self._know(save)
        shards = ((key, parse(key, value, Shard)) for key, value in self._staging.all_sync(keys.SHARDS))
        for save_id, of_save in groupby(shards, key=lambda found: found[1].save_id):
            known = self._state_of(save_id)
            first_missing, missing_count = "", 0
            for key, shard in of_save:
                # What is on its way out gets no new holders: its fragments go with those it has, or as nobody's.
                is_leaving = known is None or known[0] in (SaveState.ABORTED, SaveState.DELETED, SaveState.CONDEMNED)
                corrected = self._corrections.corrected(shard, is_leaving=is_leaving)
                lacking = self._corrections.lacking(corrected)
                first_missing = first_missing or next(iter(lacking), "")
                missing_count += len(lacking)
                if corrected != shard:
                    self._put(key, corrected)
            if missing_count and known and SaveState(known[0]).is_kept:
                more = f" (and {missing_count - 1} more)" if missing_count > 1 else ""
                self._problems.add(f"{known[1]} is kept, but {first_missing}{more}")

    # Saves that were under way

    def _settle_pending(self) -> None:
        for key, value in self._staging.all_sync(keys.SAVES):
            save = parse(key, value, Save)
            if save.state is not SaveState.PENDING:
                continue
            found = self._nothing_found(save.pool)
            for rank in range(save.world_size):
                shard, trouble = self._shard_of(save.save_id, rank)
                if shard:
                    found.count(shard, trouble)
            if found.ranks == save.world_size and not found.troubles:
                self._put(key, self._committed(save, found, self._now_unix_ms))
            else:
                self._problems.add(
                    f"{save.title} was being saved and is incomplete ({found.ranks} of {save.world_size} ranks): it is "
                    "given up unless its ranks go on with it"
                )

    def _shard_of(self, save_id: SaveId, rank: int) -> tuple[Shard | None, str]:
        value = self._staging.get_sync(keys.shard(save_id, rank))
        if value is not None:
            shard = parse(keys.shard(save_id, rank), value, Shard)
            is_whole = all(map(_is_there, forms_of(shard))) and all(map(self._is_home_there(rank), shard.references))
            return shard, "" if is_whole else f"rank {rank} lost blobs"
        rows = self._evidence.of_rank(save_id, rank)
        if not rows:
            return None, ""
        shard, trouble = assemble(save_id, rank, rows, self._domains)
        if not trouble and all(row.tells_all for row in rows):
            self._put(keys.shard(save_id, rank), shard)
            return shard, ""
        return None, trouble

    def _is_home_there(self, rank: int) -> Callable[[Reference], bool]:
        def is_there(reference: Reference) -> bool:
            key = keys.shard(reference.home.save_id, rank)
            value = self._staging.get_sync(key)
            home = parse(key, value, Shard) if value is not None else None
            blobs = forms_of(home) if home else []
            return any(forms[0].ordinal == reference.home.ordinal and _is_there(forms) for forms in blobs)

        return is_there

    # Saves that only fragments tell of. One that refers to others is incomplete by these: what it refers to is told by
    # records alone, so it is named, and left out.

    def _bring_back(self, save_id: SaveId) -> None:
        found: _Found | None = None
        first: Row | None = None
        created, completed, tells_all = _NO_TIME_YET, 0, True
        top_rank = 0
        for rank, rows in self._evidence.ranks(save_id):
            first = first or rows[0]
            found = found or self._nothing_found(_pool_of(first))
            shard, trouble = assemble(save_id, rank, rows, self._domains)
            if any(_facts(row) != _facts(first) for row in rows):
                trouble = f"rank {rank} tells of another save than rank {first.rank}"
            self._put(keys.shard(save_id, rank), shard)
            found.count(shard, trouble)
            top_rank = rank
            tells_all &= all(row.tells_all for row in rows)
            created = min([created, *(row.created_unix_ms for row in rows)])
            completed = max([completed, *(row.created_unix_ms for row in rows)])
        assert first is not None
        assert found is not None
        if not 0 < first.attempt < keys.MAX_ATTEMPT:
            self._problems.add(f"save {save_id} is of attempt {first.attempt}, which cannot be: it is left out")
            return
        save = Save(
            save_id=save_id,
            job=JobName(first.job),
            step=first.step,
            attempt=first.attempt,
            world_size=first.world_size or top_rank + 1,
            pool=_pool_of(first),
            kind=ContentKind(first.kind or ContentKind.STATE),
            state=SaveState.PENDING,
            level=found.level,
            size_bytes=found.size_bytes,
            created_unix_ms=created,
        )
        self._raise_attempt(save)
        is_whole = found.ranks == save.world_size == top_rank + 1 and not found.troubles
        key = keys.save(save.job, save.step, save.attempt)
        if tells_all and is_whole:
            self._lost_pools.count(save.pool, found.copies)
            self._place(key, self._committed(save, found, completed))
        elif not tells_all and self._staging.get_sync(key) is None:
            self._keep_unproven(key, save, completed)
        else:
            why = "; ".join(found.troubles) or f"{found.ranks} of {save.world_size} ranks are there"
            self._problems.add(
                f"{save.title} of attempt {save.attempt} is incomplete ({why}): its fragments are kept in the trash "
                "for the grace period"
            )
            self._discard(save, f"incomplete when the catalog was rebuilt: {why}")

    def _committed(self, save: Save, found: _Found, completed_unix_ms: int) -> Save:
        job = self._job(save.job)
        left_behind = job.left_behind(save.attempt, save.step)
        return replace(
            save,
            state=SaveState.SET_ASIDE if left_behind else SaveState.COMMITTED,
            note=f"attempt {job.resumed_attempt} resumed from step {job.resumed_step}" if left_behind else "",
            level=found.level,
            degraded=found.is_degraded,
            size_bytes=found.size_bytes,
            referenced_bytes=found.referenced_bytes,
            spared_bytes=found.spared_bytes,
            committed_unix_ms=completed_unix_ms,
        )

    def _place(self, key: str, save: Save) -> None:
        """Two saves of one step and attempt: the earlier was ended before the later could begin (P1)."""
        value = self._staging.get_sync(key)
        if value is not None:
            standing = parse(key, value, Save)
            is_done = standing.state.is_readable and not standing.damage
            if is_done and _began(standing) > _began(save):
                save, standing = standing, save
            self._discard(standing, "another save of this step and attempt took its place")
        self._put(key, save)
        self._know(save)

    def _keep_unproven(self, key: str, save: Save, completed_unix_ms: int) -> None:
        why = "its fragments were written by an earlier version and do not tell whether it is whole"
        self._problems.add(
            f"{save.title} of attempt {save.attempt} is set aside and held: {why}. Restore it to see, or release and "
            "delete it"
        )
        kept = replace(
            save,
            state=SaveState.SET_ASIDE,
            held=True,
            damage=f"unproven: {why}",
            note=_REBUILT,
            committed_unix_ms=completed_unix_ms,
        )
        self._put(key, kept)
        self._know(kept)

    def _discard(self, save: Save, why: str) -> None:
        """Into the trash, whose grace period begins now: nothing is collected because a catalog was lost (I7). What
        others refer to is kept.
        """
        was_readable = save.state.is_readable
        gone = replace(
            save,
            state=SaveState.DELETED if was_readable else SaveState.ABORTED,
            before_deletion=save.state if was_readable else None,
            note=why,
            ended_unix_ms=self._now_unix_ms,
        )
        key = keys.trash(save.save_id)
        if was_readable and save.referrals:
            gone = replace(gone, state=SaveState.RETIRED)
            key = keys.retired(save.job, save.step, save.attempt, save.save_id)
        self._put(key, gone)
        self._know(gone)

    def _job(self, name: JobName) -> Job:
        value = self._staging.get_sync(keys.job(name))
        return parse(keys.job(name), value, Job) if value is not None else Job(name)

    def _raise_attempt(self, save: Save) -> None:
        """P1: whoever comes next is a later attempt than all that were seen. Who ran this one is not known."""
        job = self._job(save.job)
        if save.attempt > job.attempt:
            raised = replace(job, attempt=save.attempt, run="", ordinal=0, owner=_REBUILT)
            self._put(keys.job(save.job), raised)

    def _make_pools(self) -> None:
        """Pools that only fragments tell of, at the level that their checkpoints have."""
        names = {
            parse(key, value, Save).pool
            for prefix in (keys.SAVES, keys.TRASH)
            for key, value in self._staging.all_sync(prefix)
        }
        for name in sorted(names | self._lost_pools.names()):
            if self._staging.get_sync(keys.pool(name)) is not None:
                continue
            pool = self._lost_pools.made_anew(name)
            self._put(keys.pool(name), PoolRecord(pool, random_id()))
            self._put(keys.layout(name), Layout(1))
            self._problems.add(f'pool "{name}" is made anew at {pool.level}: its settings were lost, set them again')

    def _nothing_found(self, name: PoolName) -> _Found:
        if name not in self._pools:
            value = self._staging.get_sync(keys.pool(name))
            known = parse(keys.pool(name), value, PoolRecord).pool if value is not None else None
            self._pools[name] = known or self._lost_pools.coded(name)
        return _Found(self._pools[name], self._domains)

    # Records

    def _put(self, key: str, value: object) -> None:
        self._staging.apply_sync([(key, put(key, value).value)])

    def _know(self, save: Save) -> None:
        row = (save.save_id, save.state, save.title)
        self._staging.database.execute("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", row)

    def _is_known(self, save_id: SaveId) -> bool:
        return self._state_of(save_id) is not None

    def _state_of(self, save_id: SaveId) -> tuple[str, str] | None:
        query = "SELECT state, title FROM known WHERE save_id = ?"
        found: tuple[str, str] | None = self._staging.database.execute(query, (save_id,)).fetchone()
        return found


def _is_there(forms: Sequence[Blob]) -> bool:
    return any(is_readable(form, counted(form)) for form in forms)


def _copies(blob: Blob) -> int:
    return len({holder.node_id for holder in blob.holders if not holder.dropping})


def _began(save: Save) -> tuple[int, SaveId]:
    return save.created_unix_ms, save.save_id


def _pool_of(row: Row) -> PoolName:
    """A client said so once; what can be no pool is none."""
    try:
        return PoolName(check_name(row.own_pool, "pool"))
    except InvalidArgumentError:
        return DEFAULT_POOL


def _facts(row: Row) -> tuple[object, ...]:
    return row.job, row.step, row.attempt, row.world_size, row.kind, row.own_pool
