"""What the nodes of a run are told about each other. All of them are this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sdrs_scheduler.jobs.job import Slot

_ADDRESS = "127.0.0.1"


def node_environment(slots: Sequence[Slot], rank: int, hosts_file: str, grace_seconds: float) -> Mapping[str, str]:
    """All but the port of MASTER_PORT, which the shepherd chooses when it starts the processes."""
    slot = slots[rank]
    return {
        "SDRS_NODE": slot.node,
        "SDRS_NODE_RANK": str(rank),
        "SDRS_NODE_COUNT": str(len(slots)),
        "SDRS_HOSTFILE": hosts_file,
        "MASTER_ADDR": _ADDRESS,
        # torchrun reads its options from PET_...; it must not restart anything itself: one owner of retries.
        "PET_NNODES": str(len(slots)),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": _ADDRESS,
        "PET_MAX_RESTARTS": "0",
        # After SIGTERM it kills its processes after 30 s otherwise, however long their save may take.
        "PET_SHUTDOWN_TIMEOUT": str(math.ceil(grace_seconds)),
        # Empty: none. Indexes are NVML's, which go by the bus; CUDA's own order is by speed.
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, slot.gpus)),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def hosts_text(slots: Sequence[Slot]) -> str:
    """A line for each node, as mpirun reads it."""
    return "".join(f"{_ADDRESS} slots={len(slot.gpus) or 1}\n" for slot in slots)


def command_words(command: str | tuple[str, ...]) -> list[str]:
    return ["bash", "-c", command] if isinstance(command, str) else list(command)
