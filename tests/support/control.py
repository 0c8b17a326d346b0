"""The control plane in one process: the real controller over an in-memory MetaStore, nodes that only hold names.

Time moves when a test says so. ``FaultyStore`` is the MetaStore with a transaction that fails, or happens and is never
answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from sdrs_core.attempts import Attempt
from sdrs_core.backup.targets import Target
from sdrs_core.checkpoints import Blob, ContentKind, Holder, Save, SaveState, Shard, Verdict, content_hash
from sdrs_core.cluster import DEFAULT_POOL, Authority, Disk, DiskState, Endpoints, Group, Node, Order, Pool, Retention
from sdrs_core.codes import MIRROR
from sdrs_core.errors import CorruptDataError, FullError, SdrsError, StaleTermError, UnavailableError
from sdrs_core.ids import BlobId, DiskId, GroupId, JobName, NodeId, PoolName, SaveId, random_id
from sdrs_core.levels import Level
from sdrs_core.pools import PoolChange
from sdrs_core.redundancy import form_of, place
from sdrs_core.soundness import shares_needed
from sdrs_core.stocks import fragment_bytes
from sdrs_storaged.config import ControllerConfig
from sdrs_storaged.control import keys
from sdrs_storaged.control.backup.orders import ProbeStep, Upload, UploadProgress
from sdrs_storaged.control.claims import FragmentName
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.control.collector import Fragment
from sdrs_storaged.control.controller import Controller
from sdrs_storaged.control.copier import HeldFragment, Pull
from sdrs_storaged.control.looks import FragmentCheck
from sdrs_storaged.control.meta.memory import MemoryMetaStore
from sdrs_storaged.control.meta.store import Compare, Op, TxnResult
from sdrs_storaged.control.receipts import Receipt
from sdrs_storaged.control.rounds import Round
from sdrs_storaged.control.saves import Begun, SaveRequest

JOB = JobName("llm-7b")
NODE = NodeId("node-1")
GRACE_SECONDS = 100.0
TTL_SECONDS = 600.0


class ManualClock(Clock):
    def __init__(self) -> None:
        self._seconds = 1_700_000_000.0

    def advance(self, seconds: float) -> None:
        self._seconds += seconds

    def unix_ms(self) -> int:
        return int(self._seconds * 1000)

    def unix_seconds(self) -> float:
        return self._seconds

    def monotonic_seconds(self) -> float:
        return self._seconds


class FaultyStore(MemoryMetaStore):
    """``before`` runs ahead of each transaction (numbered from 1) and may raise: then nothing happens. ``after`` runs
    once it has happened, and may raise: then the answer is lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.txn_count = 0
        self.txns: list[tuple[Sequence[Compare], Sequence[Op]]] = []
        self.before: Callable[[int], Awaitable[None]] | None = None
        self.after: Callable[[int], Awaitable[None]] | None = None

    async def txn(self, compare: Sequence[Compare], then: Sequence[Op]) -> TxnResult:
        self.txn_count += 1
        number = self.txn_count
        self.txns.append((compare, then))
        if self.before:
            await self.before(number)
        result = await super().txn(compare, then)
        if self.after:
            await self.after(number)
        return result

    def lose_answer_of(self, number: int) -> None:
        """The ``number``-th transaction from now on happens, and its caller is told that the store is out of reach."""
        self.after = self._raise_at(self.txn_count + number, UnavailableError("the answer was lost"))

    def fail(self, number: int, error: SdrsError) -> None:
        self.before = self._raise_at(self.txn_count + number, error)

    def heal(self) -> None:
        self.before = self.after = None

    @staticmethod
    def _raise_at(target: int, error: SdrsError) -> Callable[[int], Awaitable[None]]:
        async def hook(number: int) -> None:
            if number == target:
                raise error

        return hook


DISK = DiskId("d" * 32)
BLOB_BYTES = 10


class FakeNodes:
    """What nodes hold, by name only; each obeys the highest authority it has heard (P14), as a real one does."""

    def __init__(self) -> None:
        self.fragments: dict[NodeId, dict[FragmentName, Fragment]] = {}
        self.authority: dict[NodeId, Authority] = {}
        self.broken: set[NodeId] = set()
        # Those whose process is gone: their port is closed.
        self.refusing: set[NodeId] = set()
        self.verdicts: dict[BlobId, Verdict | None] = {}
        # What one node finds, where another finds something else.
        self.verdicts_at: dict[tuple[NodeId, BlobId], Verdict | None] = {}
        self.hashes: dict[tuple[NodeId, FragmentName], str] = {}
        # What is known of blobs beyond their names; of others: whole copies of a few bytes.
        self.blobs: dict[BlobId, Blob] = {}
        self.sizes: dict[FragmentName, int] = {}
        # Those that have no room, whatever they report.
        self.full: set[NodeId] = set()
        # How far the fragments are that are being pulled, if that is told.
        self.making: dict[FragmentName, int] = {}
        # Where new fragments go, if not to the first disk.
        self.writes_to: dict[NodeId, DiskId] = {}
        self.disk_of: dict[tuple[NodeId, FragmentName], DiskId] = {}
        self.pull_limits: list[int] = []
        self.called_off: list[FragmentName] = []
        # Of buckets: what cannot be read, and what was; and when that is then made.
        self.damaged_objects: set[str] = set()
        self.fetched: list[str] = []
        self.now_unix_ms = 0
        self.pulls: list[tuple[NodeId, BlobId, tuple[NodeId, ...]]] = []
        self.looked_up: list[tuple[NodeId, frozenset[FragmentName]]] = []
        self.on_pull: Callable[[NodeId, BlobId], Awaitable[None]] | None = None
        self.on_lookup: Callable[[NodeId], Awaitable[None]] | None = None
        self.orders: list[tuple[NodeId, frozenset[FragmentName]]] = []
        self.page_size = 2
        self.on_list: Callable[[], Awaitable[None]] | None = None

    def put(self, node_id: NodeId, blob_id: BlobId, save_id: SaveId, created_unix_ms: int, *, index: int = 0) -> None:
        fragment = Fragment(blob_id, index, save_id, created_unix_ms)
        self.fragments.setdefault(node_id, {})[(blob_id, index)] = fragment
        if blob_id in self.blobs:
            self._describe(node_id, self.blobs[blob_id], index)

    def _describe(self, node_id: NodeId, blob: Blob, index: int) -> None:
        name = (blob.id, index)
        self.blobs[blob.id] = blob
        self.hashes[(node_id, name)] = fragment_hash(blob, index)
        self.sizes[name] = fragment_bytes(blob, index)
        self.disk_of[(node_id, name)] = self.writes_to.get(node_id, DISK)

    def take(self, node_id: NodeId, blob_id: BlobId, *, index: int = 0) -> None:
        """It is gone, and nobody was told."""
        del self.fragments[node_id][(blob_id, index)]

    def having(self, blob_id: BlobId) -> set[NodeId]:
        return {node_id for node_id, held in self.fragments.items() if any(name[0] == blob_id for name in held)}

    def places(self, blob_id: BlobId) -> set[tuple[NodeId, int]]:
        """Who has which fragment of it."""
        return {(node_id, name[1]) for node_id, held in self.fragments.items() for name in held if name[0] == blob_id}

    def names(self, node_id: NodeId = NODE) -> set[FragmentName]:
        return set(self.fragments.get(node_id, {}))

    async def list_fragments(self, node: Node, after: str) -> tuple[list[Fragment], str]:
        held = sorted(self.fragments.get(node.id, {}).items())
        page = [fragment for name, fragment in held if _token(*name) > after][: self.page_size]
        if self.on_list:
            await self.on_list()
        if node.id in self.broken and after:
            raise UnavailableError("the listing broke off")
        return page, _token(page[-1].blob_id, page[-1].index) if page else ""

    async def drop_fragments(self, node: Node, fragments: Sequence[FragmentName], order: Order) -> set[FragmentName]:
        self.orders.append((node.id, frozenset(fragments)))
        if node.id in self.broken:
            raise UnavailableError(f"node {node.id} does not answer")
        self._obey(node.id, order)
        for name in fragments:
            self.fragments.get(node.id, {}).pop(name, None)
        return set(fragments)

    async def describe_blob(
        self, node: Node, blob: Blob, sources: Sequence[tuple[Node, Holder]], order: Order, *, wants_blake3: bool
    ) -> tuple[bytes, str]:
        raise UnavailableError("these nodes back up nothing")

    async def upload_blob(
        self, node: Node, upload: Upload, sources: Sequence[tuple[Node, Holder]], order: Order
    ) -> AsyncGenerator[UploadProgress, None]:
        raise UnavailableError("these nodes back up nothing")
        yield

    async def probe_target(self, node: Node, target: Target, order: Order) -> AsyncGenerator[ProbeStep, None]:
        raise UnavailableError("these nodes back up nothing")
        yield

    async def is_refused(self, node: Node) -> bool:
        return node.id in self.refusing

    def _obey(self, node_id: NodeId, order: Order) -> None:
        authority = order.authority
        seen = self.authority.get(node_id, Authority())
        if (authority.incarnation, authority.term) < (seen.incarnation, seen.term):
            raise StaleTermError(f"term {seen.term} was seen")
        self.authority[node_id] = authority

    async def lookup_fragments(self, node: Node, names: Sequence[FragmentName]) -> list[HeldFragment]:
        self.looked_up.append((node.id, frozenset(names)))
        if self.on_lookup:
            await self.on_lookup(node.id)
        if node.id in self.broken:
            raise UnavailableError(f"node {node.id} does not answer")
        return [self._held(node.id, name) for name in names if name in self.fragments.get(node.id, {})]

    def _held(self, node_id: NodeId, name: FragmentName) -> HeldFragment:
        fragment, blob = self.fragments[node_id][name], self.blobs.get(name[0])
        digest, disk_id = self.hashes.get((node_id, name), "content"), self.disk_of.get((node_id, name), DISK)
        held = HeldFragment(*name, fragment.save_id, self.sizes.get(name, BLOB_BYTES), digest, disk_id)
        if blob is None:
            return held
        return replace(held, code=blob.code, source_size_bytes=blob.size_bytes, source_hash=blob.hash)

    async def made_bytes(self, node: Node, name: FragmentName) -> int:
        return self.making.get(name, 0)

    async def pull_fragment(
        self, node: Node, pull: Pull, sources: Sequence[tuple[Node, Holder]], order: Order
    ) -> HeldFragment:
        name = (pull.blob.id, pull.fragment_index)
        if pull.is_called_off:
            self.called_off.append(name)
            raise UnavailableError("called off")
        self.pulls.append((node.id, pull.blob.id, tuple(source.id for source, _ in sources)))
        self.pull_limits.append(pull.max_bytes_per_second)
        if self.on_pull:
            await self.on_pull(node.id, pull.blob.id)
        if node.id in self.broken:
            raise UnavailableError(f"node {node.id} does not answer")
        self._obey(node.id, order)
        held = self.fragments.setdefault(node.id, {})
        if name in held and self._held(node.id, name).hash == fragment_hash(pull.blob, pull.fragment_index):
            return self._held(node.id, name)
        good = {
            holder.fragment_index: self.fragments[source.id][(pull.source.id, holder.fragment_index)]
            for source, holder in sources
            if source.id not in self.broken
            and (pull.source.id, holder.fragment_index) in self.fragments.get(source.id, {})
            and self._held(source.id, (pull.source.id, holder.fragment_index)).hash == holder.fragment_hash
        }
        if pull.backup:
            if pull.backup.place.key in self.damaged_objects:
                raise CorruptDataError(f"backup {pull.backup.target.name}: object {pull.backup.place.key} is damaged")
            if node.id in self.full:
                raise FullError(f"node {node.id} is full")
            self.fetched.append(pull.backup.place.key)
            held[name] = Fragment(*name, pull.save.save_id, self.now_unix_ms)
            self._describe(node.id, pull.blob, pull.fragment_index)
            return self._held(node.id, name)
        is_copied = pull.source.id == pull.blob.id and pull.fragment_index in good
        if not is_copied and len(good) < shares_needed(pull.source.code):
            raise UnavailableError(f"no source has blob {pull.blob.id}")
        if node.id in self.full:
            raise FullError(f"node {node.id} is full")
        known = next(iter(good.values()))
        held[name] = Fragment(*name, known.save_id, known.created_unix_ms)
        self._describe(node.id, pull.blob, pull.fragment_index)
        return self._held(node.id, name)

    async def verify_fragment(
        self,
        node: Node,
        blob_id: BlobId,
        index: int,
        expected_hash: str,
        *,
        code: str = MIRROR,
        sources: Sequence[tuple[Node, Holder]] = (),
        max_bytes_per_second: int = 0,
    ) -> AsyncIterator[FragmentCheck]:
        yield FragmentCheck(0, None, "")
        if node.id in self.broken:
            raise UnavailableError(f"node {node.id} does not answer")
        verdict = self.verdicts_at.get((node.id, blob_id), self.verdicts.get(blob_id, Verdict.OK))
        if verdict is not None:
            yield FragmentCheck(1, verdict, "as the test says")


def _token(blob_id: BlobId, index: int) -> str:
    return f"{blob_id}.{index:03d}"


def fragment_hash(blob: Blob, index: int) -> str:
    return blob.hash if blob.code == MIRROR else f"{blob.code} fragment {index}"


def attempt(number: int = 0, run: str = "run") -> Attempt:
    return Attempt(run, number, f"host of {run}:{number}")


@dataclass
class Harness:
    """One cluster: a store, nodes and a clock that outlive its controllers."""

    store: FaultyStore = field(default_factory=FaultyStore)
    nodes: FakeNodes = field(default_factory=FakeNodes)
    clock: ManualClock = field(default_factory=ManualClock)
    node_ids: tuple[NodeId, ...] = (NODE,)
    config: ControllerConfig = field(
        default_factory=lambda: ControllerConfig(
            grace_seconds=GRACE_SECONDS, save_ttl_seconds=TTL_SECONDS, scan_interval_seconds=0
        )
    )
    current: Controller | None = None
    # Nodes that are not heard, until they are taken out again.
    silent: set[NodeId] = field(default_factory=set)
    # What nodes report of themselves, if not one disk that is empty, in a domain of its own.
    capacity_bytes: int = 1000
    disks: dict[NodeId, tuple[Disk, ...]] = field(default_factory=dict)
    domains: dict[NodeId, str] = field(default_factory=dict)

    @property
    def controller(self) -> Controller:
        assert self.current
        return self.current

    async def start(self) -> Controller:
        """A new controller takes over from the one before, which is not told; its nodes register and beat."""
        if self.current:
            await self.store.resign(self.current.records.term)
        term = await self.store.campaign(f"controller-{self.store.txn_count}")
        self.current = await Controller.start(self.store, term, self.clock, self.nodes, self.config)
        await self.register()
        return self.current

    async def register(self) -> None:
        for node_id in self.node_ids:
            joining = replace(node(node_id), domain=self.domains.get(node_id, node_id))
            await self.controller.members.register(joining, f"key of {node_id}", seen=Authority())
        self.beat()

    def beat(self) -> None:
        for node_id in self.node_ids:
            if node_id in self.silent:
                continue
            disk = Disk(DISK, "/disk", DiskState.OK, self.capacity_bytes, 0, 0)
            self.controller.members.beat(node_id, self.disks.get(node_id, (disk,)), self)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.beat()
        await self.controller.failover.pass_once()

    async def collect(self, times: int = 1) -> None:
        for _ in range(times):
            self.beat()
            await self.controller.collector.collect()

    # Saving

    def request(
        self, step: int, *, rank: int = 0, world_size: int = 1, by: Attempt | None = None, **given: object
    ) -> SaveRequest:
        request = SaveRequest(
            job=JOB,
            step=step,
            rank=rank,
            world_size=world_size,
            attempt=by or attempt(),
            pool=DEFAULT_POOL,
            level=Level.NONE,
            kind=ContentKind.STATE,
            host="",
            avoid=frozenset(),
        )
        return replace(request, **given)  # type: ignore[arg-type]

    async def begin(
        self, step: int, *, rank: int = 0, world_size: int = 1, by: Attempt | None = None, **given: object
    ) -> Begun:
        return await self.controller.saves.begin(self.request(step, rank=rank, world_size=world_size, by=by, **given))

    def receipt(
        self,
        begun: Begun,
        *,
        rank: int = 0,
        content: str = "content",
        blob_count: int = 1,
        blob_bytes: int = BLOB_BYTES,
    ) -> Receipt:
        """What the primary would send once the rank's blobs are durable; its fragments are on the node."""
        group: Group = begun.group or self.controller.members.groups(pool=begun.save.pool)[0]
        form = form_of(self.controller.members.pool(begun.save.pool), blob_bytes)
        blobs = []
        for ordinal in range(blob_count):
            blob = Blob(BlobId(random_id()), ordinal, blob_bytes, content, form.code)
            self.nodes.blobs[blob.id] = blob
            places = [(member, 0) for member in group.members]
            if form.spread:
                placed = place(form, group.members, self.controller.members.domains())
                places = [(node_id, 0 if form.code == MIRROR else share) for share, node_id in placed.items()]
            for node_id, index in places:
                self.nodes.put(node_id, blob.id, begun.save.save_id, self.clock.unix_ms(), index=index)
            holders = tuple(Holder(node_id, DISK, index, fragment_hash(blob, index)) for node_id, index in places)
            blobs.append(replace(blob, holders=holders))
        shard = Shard(
            begun.save.save_id,
            rank,
            begun.save.kind,
            blob_bytes * blob_count,
            content_hash((blob.size_bytes, blob.hash) for blob in blobs),
            tuple(blobs),
        )
        return Receipt(
            begun.capability, begun.save.job, begun.save.step, begun.save.attempt, group.id, group.epoch, shard
        )

    async def register_receipts(self, *receipts: Receipt, node_id: NodeId = NODE) -> list[SaveState | SdrsError]:
        return await self.controller.receipts.register(node_id, receipts)

    async def seal(
        self, begun: Begun, *, rank: int = 0, content: str = "content", blob_bytes: int = BLOB_BYTES
    ) -> SaveState:
        """The rank's bytes are durable and its receipt is sent; raises why it was refused."""
        receipt = self.receipt(begun, rank=rank, content=content, blob_bytes=blob_bytes)
        primary = self.controller.members.group(receipt.group_id).primary
        [outcome] = await self.register_receipts(receipt, node_id=primary)
        if isinstance(outcome, SdrsError):
            raise outcome
        return outcome

    async def save(
        self,
        step: int,
        *,
        world_size: int = 1,
        by: Attempt | None = None,
        content: str = "content",
        blob_bytes: int = BLOB_BYTES,
        **given: object,
    ) -> Save:
        """A whole checkpoint, by all its ranks."""
        begun = None
        for rank in range(world_size):
            begun = await self.begin(step, rank=rank, world_size=world_size, by=by, **given)
            if begun.registered is None:
                await self.seal(begun, rank=rank, content=content, blob_bytes=blob_bytes)
        assert begun
        return await self.find(begun)

    async def find(self, begun: Begun) -> Save:
        return await self.controller.commits.find(begun.save.save_id, begun.save.job, begun.save.step)

    # Looking

    async def listed(self, *, all_states: bool = False) -> list[Save]:
        found: list[Save] = []
        token, more = "", True
        while more:
            page, token = await self.controller.catalog.page(JOB, all_states=all_states, after=token, limit=3)
            found += page
            more = bool(token)
        return found

    async def steps(self) -> list[int]:
        return [save.step for save in await self.listed()]

    async def states(self) -> list[tuple[int, int, SaveState]]:
        return [(save.step, save.attempt, save.state) for save in await self.listed(all_states=True)]

    async def trash(self) -> list[Save]:
        return [stored.value async for stored in self.controller.records.all(keys.TRASH, Save)]

    async def shards(self, save: Save) -> list[Shard]:
        records = self.controller.records
        return [stored.value async for stored in records.all(keys.shards(save.save_id), Shard)]

    # Restoring

    async def join(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        by: Attempt | None = None,
        step: int | None = None,
        resume: bool = False,
        up_to_step: int | None = None,
    ) -> tuple[Round, Save]:
        return await self.controller.rounds.join(
            JOB, by or attempt(), rank, world_size, step=step, resume=resume, up_to_step=up_to_step
        )

    async def report(
        self, number: int, *, rank: int = 0, by: Attempt | None = None, failure: str = "", wait_ms: int = 0
    ) -> str:
        outcome, _ = await self.controller.rounds.report(JOB, by or attempt(), number, rank, failure, wait_ms)
        return outcome.value

    async def resume(self, *, by: Attempt, step: int | None = None) -> Save:
        """A resuming restore of one process, to its end."""
        current, save = await self.join(by=by, step=step, resume=True)
        assert await self.report(current.number, by=by) == "done"
        return save

    # Pools

    async def retain(self, retention: Retention, pool: PoolName = DEFAULT_POOL) -> None:
        rules = {
            "keep_last": retention.keep_last,
            "keep_every_steps": retention.keep_every_steps,
            "max_age_seconds": retention.max_age_seconds,
        }
        await self.controller.pools.update(pool, PoolChange(retention=rules))

    async def delete_pool(self, name: str) -> None:
        """As the service does it: the count is taken as the call begins."""
        count = self.controller.tally.saves_by_pool[PoolName(name)]
        await self.controller.pools.delete(name, checkpoint_count=count)

    async def create_pool(self, name: str, *, mirrors: int = 1, allow_degraded: bool = False) -> None:
        level = Level.L2 if mirrors > 1 else Level.L1
        pool = Pool(PoolName(name), level, mirrors=mirrors, allow_degraded=allow_degraded)
        await self.controller.pools.create(pool, request_id=f"request for {name}")

    # Nodes that come and go

    async def kill(self, *node_ids: NodeId) -> None:
        """Their processes are gone: streams break, ports are closed."""
        for node_id in node_ids:
            self.silent.add(node_id)
            self.nodes.refusing.add(node_id)
            self.nodes.broken.add(node_id)
            self.controller.members.stream_ended(node_id, self)
        await self.settle()

    def freeze(self, *node_ids: NodeId) -> None:
        """They say nothing any more, but their ports are open."""
        self.silent.update(node_ids)

    async def revive(self, *node_ids: NodeId) -> None:
        for node_id in node_ids:
            self.silent.discard(node_id)
            self.nodes.refusing.discard(node_id)
            self.nodes.broken.discard(node_id)
        self.beat()
        await self.settle()

    async def settle(self) -> None:
        """Probes end, then one round of failover."""
        for _ in range(5):
            await asyncio.sleep(0)
        await self.controller.failover.pass_once()

    async def wait(self, seconds: float) -> None:
        """Time passes as it does in life: a quarter of a second at a time, with beats and rounds of failover."""
        for _ in range(int(seconds * 4)):
            await self.pass_time(0.25)
            await self.controller.failover.pass_once()

    def group(self, group_id: str) -> Group:
        return self.controller.members.group(GroupId(group_id))


def node(node_id: NodeId) -> Node:
    return Node(node_id, Endpoints("127.0.0.1:1", "127.0.0.1:2", "", "", "host"), node_id, 1, "test")


async def started(*, node_ids: tuple[NodeId, ...] = (NODE,)) -> Harness:
    harness = Harness(node_ids=node_ids)
    await harness.start()
    return harness
