"""The role ``node``: fragments on disks, groups with peers, a link to the controllers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from sdrs_core.cluster import Endpoints, Node
from sdrs_core.erasure import kernel
from sdrs_core.errors import RefusedError
from sdrs_proto.services import STORAGE, handler
from sdrs_storaged.config import NodeConfig, split_address
from sdrs_storaged.control.clock import Clock
from sdrs_storaged.logs import get_log
from sdrs_storaged.metrics import DiskMetrics, GroupMetrics, NodeMetrics
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.identity import Identity
from sdrs_storaged.node.pacing import Background
from sdrs_storaged.node.receipts import ReceiptQueue
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.node.snapshots import SnapshotShelf
from sdrs_storaged.node.transfers import Slots, Tickets
from sdrs_storaged.rpc.blobs import BlobStore
from sdrs_storaged.rpc.census import Census
from sdrs_storaged.rpc.controller_client import ControllerClient
from sdrs_storaged.rpc.data_channel import DataChannelServer
from sdrs_storaged.rpc.edge import serve
from sdrs_storaged.rpc.filling import Filling
from sdrs_storaged.rpc.intakes import Intakes
from sdrs_storaged.rpc.peers import Peers
from sdrs_storaged.rpc.pulling import Pulling
from sdrs_storaged.rpc.recall import Recall
from sdrs_storaged.rpc.replication import Replication
from sdrs_storaged.rpc.sealing import Sealing
from sdrs_storaged.rpc.snapshot_service import SnapshotService
from sdrs_storaged.rpc.sources import Sources
from sdrs_storaged.rpc.spread_seal import SpreadSeal
from sdrs_storaged.rpc.storage_service import StorageService
from sdrs_storaged.rpc.uploading import Uploading
from sdrs_storaged.rpc.verifying import Verifying
from sdrs_storaged.rpc.workers import Workers
from sdrs_storaged.rpc.writing import Writing
from sdrs_storaged.staging.assembly import Staging, open_segments
from sdrs_storaged.staging.sending import Sending
from sdrs_storaged.store.capacity import Thresholds
from sdrs_storaged.store.disk import Disk
from sdrs_storaged.store.engine import FragmentStore
from sdrs_storaged.surroundings import Surroundings, advertised
from sdrs_storaged.version import VERSION

log = get_log("storaged")

_DRAIN_SECONDS = 10.0
_VERIFY_SLOTS = 2  # a disk reads no faster for more
_READS_PER_REPAIR = 4  # of what a fragment is made of, others read so much here as is read elsewhere for us
_UPLOAD_DRAIN_SECONDS = 3.0
_UPLOAD_SLOTS = 4  # backups: each holds a few parts in memory
_PUSH_WORKERS = 4
_LOOK_WORKERS = 4
_STAGE_WORKERS = 12  # as many as staged shards are sent at once, in as many streams each
_LONGEST_UNIX_PATH = 100


async def start_node(around: Surroundings) -> None:
    config, data_dir, cleanup = around.config.node, around.config.data_dir, around.cleanup
    log.info("erasure_kernel", kernel=await asyncio.to_thread(kernel))
    segments = await asyncio.to_thread(open_segments, config, data_dir)
    if segments is not None:
        # Entered before any thread is made that reads from segments, hence left after all of them.
        cleanup.push_async_callback(asyncio.to_thread, segments.close)
    identity = await asyncio.to_thread(Identity.open, data_dir / "node.json", config.id)
    groups = Groups(identity)
    client = ControllerClient(around.channels, config.controllers, identity, groups)
    if not identity.cluster_id:
        await asyncio.to_thread(identity.join, await client.find_cluster())
    store = FragmentStore(await asyncio.to_thread(_open_disks, config, data_dir, identity), Clock().unix_seconds)
    cleanup.callback(store.close)
    receipts = ReceiptQueue(client.send_receipts)
    reports = MemberReports(client.report_member)
    tickets = Tickets()
    # P21: slots and threads of their own for each kind, so that no kind waits for another.
    writes, members = Slots("write", config.write_slots), Slots("member", config.member_slots)
    reads, repairs = Slots("read", config.read_slots), Slots("repair", config.repair_slots)
    # Of other nodes that repair. Apart from our own repairs, which wait for peers: these must wait for nobody.
    repair_reads = Slots("repair read", _READS_PER_REPAIR * config.repair_slots)
    verifies = Slots("verify", _VERIFY_SLOTS)
    write_workers = _workers(cleanup, "write", config.write_slots)
    member_workers = _workers(cleanup, "member", config.member_slots)
    read_workers = _workers(cleanup, "read", config.read_slots + _VERIFY_SLOTS)
    repair_workers = _workers(cleanup, "repair", config.repair_slots)
    pushes, looks = _workers(cleanup, "push", _PUSH_WORKERS), _workers(cleanup, "look", _LOOK_WORKERS)
    metrics = NodeMetrics(around.registry)
    blobs = BlobStore(store, groups, metrics)
    peers = Peers(around.channels, config.slow_member_seconds)
    replication = Replication(store, groups, peers, reports, metrics)
    intakes = Intakes(blobs, groups, replication)
    census = Census(store, groups, peers, reports, looks)
    filling = Filling(groups, peers, Sources(store, peers, identity.node_id, for_repair=False), metrics)
    transfers = {"write": writes, "member": members, "read": reads, "repair": repairs, "repair_read": repair_reads}
    uploads = Slots("upload", _UPLOAD_SLOTS)
    # After they were told to stop, which most hear of at the next block; who waits for a bucket is left behind.
    cleanup.push_async_callback(asyncio.to_thread, uploads.drain, _UPLOAD_DRAIN_SECONDS)
    background = Background(lambda: writes.taken + members.taken > 0)
    cleanup.callback(background.stop)
    cleanup.enter_context(groups.watching(lambda: store.set_draining(groups.draining_disks)))
    around.registry.register(DiskMetrics(store, lambda: {kind: slots.taken for kind, slots in transfers.items()}))
    around.registry.register(GroupMetrics(groups, identity.node_id))
    writing = Writing(
        blobs,
        groups,
        replication,
        intakes,
        Recall(groups, census, reports),
        tickets,
        slots=writes,
        member_slots=members,
        workers=write_workers,
        member_workers=member_workers,
    )
    sealing = Sealing(
        store,
        groups,
        replication,
        peers,
        reports,
        receipts,
        SpreadSeal(groups, census, reports, filling.fill, pushes),
        looks=looks,
        pushes=pushes,
        slow_seconds=config.slow_member_seconds,
    )
    sources = Sources(store, peers, identity.node_id, for_repair=True)
    pulling = Pulling(store, sources, metrics, background, slots=repairs, workers=repair_workers)
    uploading = Uploading(
        sources,
        metrics,
        background,
        slots=uploads,
        readers=_workers(cleanup, "identify", _UPLOAD_SLOTS),
        looks=_workers(cleanup, "bucket", _LOOK_WORKERS),
    )
    verifying = Verifying(store, sources, background, slots=verifies, workers=read_workers)
    service = StorageService(
        store,
        blobs,
        identity,
        groups,
        tickets,
        writing=writing,
        sealing=sealing,
        pulling=pulling,
        uploading=uploading,
        verifying=verifying,
        reads=reads,
        repair_reads=repair_reads,
        read_workers=read_workers,
        looks=looks,
    )
    node: Node | None = None
    shelf = await asyncio.to_thread(SnapshotShelf, data_dir / "snapshots", identity)
    snapshots = SnapshotService(shelf, identity, lambda: node)
    address = await around.serve(config.listen, [handler(STORAGE, service, serve, snapshots)])
    staging: Staging | None = None
    if segments is not None:
        stage_workers = _workers(cleanup, "stage", _STAGE_WORKERS)
        sending = Sending(identity.node_id, writing, sealing, around.channels, stage_workers)
        staging = Staging(segments, client, sending, stage_workers, around.registry)
        cleanup.callback(staging.close)
    data_server = DataChannelServer(blobs, intakes, tickets, background, staging.serve if staging else None)
    cleanup.callback(data_server.close)
    data_address = data_server.listen_tcp(*split_address(config.data_listen))
    endpoints = Endpoints(
        grpc=config.advertise or advertised(address),
        data=config.data_advertise or advertised(data_address),
        unix=data_server.listen_unix(_unix_path(data_dir)) if config.unix_socket else "",
        metrics=around.metrics_endpoint,
        host=socket.gethostname(),
    )
    node = Node(identity.node_id, endpoints, config.domain or endpoints.host, os.getpid(), VERSION)
    linked = asyncio.Event()
    around.run(receipts.run())
    around.run(reports.run())
    around.run(client.run(node, store.disks, linked))
    around.facts |= {"id": identity.node_id, "grpc": address, "data": data_address, "unix": endpoints.unix}
    # It serves what it holds before any controller takes it in: a lost catalog is rebuilt from nodes like that (P19).
    await around.announce()
    await linked.wait()
    if staging is not None:
        around.run(staging.run())

    async def drain() -> None:
        # Nobody new; those inside may finish, because their clients have sent most of it.
        kinds = transfers.values()
        await asyncio.gather(*(asyncio.to_thread(slots.drain, _DRAIN_SECONDS) for slots in kinds))

    cleanup.push_async_callback(drain)
    log.info("node_ready", node=identity.node_id, address=address)


def _workers(cleanup: AsyncExitStack, name: str, count: int) -> Workers:
    workers = Workers(name, count)
    # Off the loop: those who are still at work may wait for a call that is made on it.
    cleanup.push_async_callback(asyncio.to_thread, workers.shutdown)
    return workers


def _open_disks(config: NodeConfig, data_dir: Path, identity: Identity) -> list[Disk]:
    folders = config.disks or (data_dir / "disk-1",)
    thresholds = Thresholds(config.near_full_percent / 100, config.full_percent / 100)
    disks: list[Disk] = []
    try:
        for folder in folders:
            disk = Disk.open(
                folder,
                cluster_id=identity.cluster_id,
                node_id=identity.node_id,
                thresholds=thresholds,
                capacity_bytes=config.disk_capacity_bytes or None,
            )
            disks.append(disk)
    except BaseException:
        for disk in disks:
            disk.close()
        raise
    return disks


def _unix_path(data_dir: Path) -> Path:
    """Socket paths are short by law: that of a deep data_dir gets a private folder of its own in the temporary one."""
    path = data_dir.resolve() / "data.sock"
    if len(str(path)) <= _LONGEST_UNIX_PATH:
        return path
    name = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"sdrs-{os.getuid()}-{name}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RefusedError(f"{folder} belongs to somebody else: remove it, or choose a shorter data_dir")
    return folder / "data.sock"
