"""SDRS keeps the state of training jobs alive.

::

    cluster = sdrs.connect("sdrs://127.0.0.1:7070")        # or SDRS_URL
    checkpoints = cluster.checkpoints("llm-7b")             # one job's history
    saving = checkpoints.save(step=1000, state=state)       # returns once the state is copied
    saving.wait()                                           # durable, or raises what went wrong
    state = checkpoints.restore()                           # the newest that can be restored, verified
    job = sdrs.current_job()                                # what `sdrs job submit` started, else None

``sdrs.aio`` is the async twin; ``sdrs.errors`` has every error. Importing this package loads neither gRPC nor numpy:
that happens with the first ``connect`` and the first ``save``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sdrs import errors
from sdrs.errors import RestoreWarning, SdrsError, StaleCatalogWarning

if TYPE_CHECKING:
    from sdrs import aio as aio
    from sdrs.checkpoints import Checkpoints as Checkpoints
    from sdrs.cluster import Cluster as Cluster
    from sdrs.cluster import connect as connect
    from sdrs.job.current import CurrentJob as CurrentJob
    from sdrs.job.current import current_job as current_job
    from sdrs.restore.parts import OpenShard as OpenShard
    from sdrs.restore.parts import Part as Part
    from sdrs.saving import Progress as Progress
    from sdrs.saving import Saving as Saving
    from sdrs.upkeep import NodeDisk as NodeDisk
    from sdrs.upkeep import NodeStatus as NodeStatus
    from sdrs.upkeep import RepairStatus as RepairStatus
    from sdrs.views import ClusterInfo as ClusterInfo
    from sdrs.views import Event as Event
    from sdrs.views import FailoverOutcome as FailoverOutcome
    from sdrs.views import GroupInfo as GroupInfo
    from sdrs.views import JobInfo as JobInfo
    from sdrs.views import PoolInfo as PoolInfo
    from sdrs.views import Verification as Verification
    from sdrs_core.checkpoints import Save as Checkpoint
    from sdrs_core.levels import Level as Level

# Where each public name lives; it is imported when it is first used.
_HOMES = {
    "Checkpoint": ("sdrs_core.checkpoints", "Save"),
    "Checkpoints": ("sdrs.checkpoints", "Checkpoints"),
    "Cluster": ("sdrs.cluster", "Cluster"),
    "ClusterInfo": ("sdrs.views", "ClusterInfo"),
    "CurrentJob": ("sdrs.job.current", "CurrentJob"),
    "Event": ("sdrs.views", "Event"),
    "FailoverOutcome": ("sdrs.views", "FailoverOutcome"),
    "GroupInfo": ("sdrs.views", "GroupInfo"),
    "JobInfo": ("sdrs.views", "JobInfo"),
    "Level": ("sdrs_core.levels", "Level"),
    "NodeDisk": ("sdrs.upkeep", "NodeDisk"),
    "NodeStatus": ("sdrs.upkeep", "NodeStatus"),
    "OpenShard": ("sdrs.restore.parts", "OpenShard"),
    "Part": ("sdrs.restore.parts", "Part"),
    "PoolInfo": ("sdrs.views", "PoolInfo"),
    "Progress": ("sdrs.saving", "Progress"),
    "RepairStatus": ("sdrs.upkeep", "RepairStatus"),
    "Saving": ("sdrs.saving", "Saving"),
    "Verification": ("sdrs.views", "Verification"),
    "aio": ("sdrs.aio", ""),
    "connect": ("sdrs.cluster", "connect"),
    "current_job": ("sdrs.job.current", "current_job"),
}

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "Cluster",
    "ClusterInfo",
    "CurrentJob",
    "Event",
    "FailoverOutcome",
    "GroupInfo",
    "JobInfo",
    "Level",
    "NodeDisk",
    "NodeStatus",
    "OpenShard",
    "Part",
    "PoolInfo",
    "Progress",
    "RepairStatus",
    "RestoreWarning",
    "Saving",
    "SdrsError",
    "StaleCatalogWarning",
    "Verification",
    "aio",
    "connect",
    "current_job",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sdrs' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    found = importlib.import_module(module)
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
