"""Single nodes of a cluster on this machine: one more is started, one that was removed is stopped for good."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sdrs.address import parse_url
from sdrs.cli import local_processes
from sdrs.cli.local_daemons import node_daemons, node_name
from sdrs.cli.local_down import DRAIN_SECONDS
from sdrs.cli.local_layout import Layout, default_dir, folder_lock, read_layout, write_layout
from sdrs.cli.local_processes import find_processes
from sdrs.cli.local_start import START_SECONDS, Launch, Tell, pending_nodes
from sdrs.cli.pointer import read_pointer
from sdrs_core.errors import NotFoundError, RefusedError, SdrsError


@dataclass(frozen=True, slots=True)
class Added:
    url: str
    node_ids: tuple[str, ...]


def add_nodes(directory: Path, count: int, disks_per_node: int, domain: str, tell: Tell) -> Added:
    """Start new nodes and wait until they are up. Nodes that are down are left alone: `sdrs up` starts those."""
    tell(f"waiting for another `sdrs up` or `down` in {directory}")
    _running_layout(directory)  # before a lock file is made in a folder that is not ours
    with folder_lock(directory, START_SECONDS):
        known = _running_layout(directory)
        layout = known.with_more(count, disks_per_node, domain)
        names = [node_name(number) for number in layout.node_numbers if number > len(known.disk_counts)]
        nodes = [daemon for daemon in node_daemons(directory, layout) if daemon.name in names]
        # First, so that whatever is started is known as part of the cluster.
        write_layout(directory, layout)
        try:
            with Launch(find_processes(directory), tell) as launch:
                launch.start(nodes)
                launch.wait(lambda: pending_nodes(layout.url, launch.pids(nodes)))
        except BaseException:
            write_layout(directory, known)
            raise
    return Added(layout.url, tuple(names))


def _running_layout(directory: Path) -> Layout:
    known = read_layout(directory)
    if known is None:
        raise NotFoundError(
            f"there is no cluster of `sdrs up` in {directory}: start one, or name its folder with --dir. On another "
            "machine a node is added by starting storaged with the role node there"
        )
    missing = local_processes.missing_modules()
    if missing:
        raise SdrsError(f"the daemon needs {', '.join(missing)}, not installed here: pip install 'sdrs[server]'")
    if not any(process.name.startswith("controller") for process in find_processes(directory)):
        raise RefusedError(f"the cluster in {directory} is not running: start it first with `sdrs up`")
    return known


def stop_removed(url: str, node_id: str) -> bool:
    """After it was removed: if the node is one of this machine's cluster, it is stopped and not started again. Its
    files stay until `sdrs down --purge`.
    """
    directory = _dir_of(url)
    if directory is None:
        return False
    with folder_lock(directory, START_SECONDS):
        layout = read_layout(directory)
        number = next((n for n in layout.node_numbers if node_name(n) == node_id), None) if layout else None
        if layout is None or number is None:
            return False
        write_layout(directory, layout.without(number))
        running = [process for process in find_processes(directory) if process.name == node_id]
        local_processes.stop(running, DRAIN_SECONDS)
    return True


def _dir_of(url: str) -> Path | None:
    """The folder of the cluster at this address, if `sdrs up` runs it on this machine."""
    pointer = read_pointer()
    candidates = [default_dir()] if os.environ.get("SDRS_HOME") else []
    candidates += [pointer.dir] if pointer is not None else []
    for directory in candidates:
        try:
            layout = read_layout(directory)
        except RefusedError:
            continue  # somebody else's folder
        if layout is not None and set(layout.controller_addresses) & set(parse_url(url)):
            return directory
    return None
