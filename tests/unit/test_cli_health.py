"""When a cluster counts as degraded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sdrs.cli.health import Health, health_record, is_degraded, warnings
from sdrs.views import ClusterInfo
from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.cluster import Disk, DiskState, Endpoints, Group, Node, NodeState
from sdrs_core.ids import ClusterId, DiskId, GroupId, JobName, NodeId, PoolName, SaveId
from sdrs_core.levels import Level

DISK = Disk(DiskId("d"), "/data", DiskState.OK, capacity_bytes=100, used_bytes=10, fragment_count=1)
ENDPOINTS = Endpoints(grpc="127.0.0.1:1", data="127.0.0.1:2", unix="", metrics="", host="h")
NODE = Node(NodeId("node-1"), ENDPOINTS, "node-1", pid=7, version="1", state=NodeState.UP, disks=(DISK,))
INFO = ClusterInfo(
    id=ClusterId("c"),
    version="1",
    incarnation=1,
    term=1,
    revision=1,
    controller_pid=1,
    pending_save_count=0,
    trash_count=0,
    damaged_count=0,
    warnings=(),
    save_ttl_seconds=600,
    grace_seconds=3600,
    metrics_endpoint="",
)
GROUP = Group(GroupId("fast-1"), PoolName("fast"), 1, (NodeId("node-1"),), NodeId("node-1"), home=(NodeId("node-1"),))
HEALTHY = Health("sdrs://127.0.0.1:7070", INFO, nodes=[NODE], pools=[], jobs=[], damaged=[])
DAMAGED = Save(
    save_id=SaveId("s"),
    job=JobName("job"),
    step=3,
    attempt=1,
    world_size=1,
    pool=PoolName("default"),
    kind=ContentKind.STATE,
    state=SaveState.COMMITTED,
    level=Level.L1,
    size_bytes=1,
    created_unix_ms=1,
    damage="rank 0 is corrupt",
)


def test_a_cluster_without_warnings_is_healthy() -> None:
    assert not is_degraded(HEALTHY)
    assert health_record(HEALTHY)["state"] == "healthy"


def test_a_disk_that_is_nearly_full_is_a_warning_and_no_more() -> None:
    disk = replace(DISK, state=DiskState.NEAR_FULL)
    info = replace(INFO, warnings=("disk /data of node node-1 is nearly full (90 %)",))
    health = replace(HEALTHY, nodes=[replace(NODE, disks=(disk,))], info=info)
    assert warnings(health)
    assert not is_degraded(health)


def test_a_pause_is_one_warning_and_no_more() -> None:
    health = replace(HEALTHY, info=replace(INFO, paused_because="work"))
    (warning,) = warnings(health)
    assert "automatic failover is paused (work)" in warning
    assert not is_degraded(health)


def test_a_group_that_moved_and_works_is_no_trouble() -> None:
    health = replace(HEALTHY, groups=[replace(GROUP, primary=NodeId("node-2"))])
    assert health.moved_groups
    assert not is_degraded(health)
    assert health_record(health)["groups"] == []


@pytest.mark.parametrize(
    "health",
    [
        replace(HEALTHY, nodes=[replace(NODE, state=NodeState.DOWN)]),
        replace(HEALTHY, nodes=[]),
        replace(HEALTHY, damaged=[DAMAGED]),
        replace(HEALTHY, info=replace(INFO, warnings=("the catalog went back in time: nothing is committed",))),
        replace(HEALTHY, groups=[replace(GROUP, problem="node-2 is down, no spare is left")]),
        replace(HEALTHY, info=replace(INFO, degraded_blob_count=1)),
        replace(HEALTHY, info=replace(INFO, unavailable_count=1)),
        replace(HEALTHY, info=replace(INFO, paused_because="work", warnings=("node-1 is down, failover is paused",))),
    ],
    ids=[
        "a node down",
        "no nodes",
        "a damaged checkpoint",
        "any other warning",
        "a group in trouble",
        "copies missing",
        "a checkpoint out of reach",
        "a warning beside a pause",
    ],
)
def test_what_does_not_work_makes_it_degraded(health: Health) -> None:
    assert is_degraded(health)
    assert health_record(health)["state"] == "degraded"


def test_a_controller_that_does_not_answer_is_told_and_counts_as_degraded() -> None:
    health = replace(HEALTHY, silent_controllers=["127.0.0.1:7071"])
    assert is_degraded(health)
    assert any("127.0.0.1:7071 does not answer" in line for line in warnings(health))
