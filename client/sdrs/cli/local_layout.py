"""The folder of a cluster on this machine: what lies where, and whether it is ours.

::

    DIR/cluster.json        the marker: ports, nodes, disks of each, which of them were removed
    DIR/controller.toml     one configuration per daemon, written anew by each `sdrs up`
    DIR/node-1.toml
    DIR/controller/         one data folder per daemon, with its run.json while it runs
    DIR/node-1/disk-1/      the disks of a node
    DIR/scheduler.toml      the scheduler's, and DIR/scheduler/ with the runs and logs of its jobs
    DIR/logs/node-1.log

With `sdrs up --etcd` there are controller-1, controller-2 and etcd-1 to etcd-3 (configured by etcd-1.yaml) instead of
the one controller, whose folder stays after a move: it holds the sealed catalog.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sdrs.cli.pointer import replace_file
from sdrs_core.errors import RefusedError

DEFAULT_PORT = 7070
DEFAULT_NODE_COUNT = 3
HOST = "127.0.0.1"
ETCD_COUNT = 3
_MARKER = "cluster.json"
_LOCK = ".lock"
# Format 2 is a cluster on etcd: a version that knows format 1 only would start an empty controller beside it.
_FORMAT, _FORMAT_WITH_ETCD = 1, 2


def default_dir() -> Path:
    home = os.environ.get("SDRS_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".local" / "share" / "sdrs").resolve()


@dataclass(frozen=True, slots=True)
class EtcdPorts:
    """What a cluster on etcd has besides: a second controller, and the etcds, one entry each."""

    standby: int
    clients: tuple[int, ...]
    peers: tuple[int, ...]

    @property
    def all(self) -> tuple[int, ...]:
        return (self.standby, *self.clients, *self.peers)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the marker records. ``disk_counts`` has one entry per node there ever was, in order: names are not given
    twice.
    """

    port: int
    disk_counts: tuple[int, ...]
    etcd: EtcdPorts | None = None
    # By number: nodes that belong to the cluster no more, and those that count as part of a larger failure domain.
    removed: tuple[int, ...] = ()
    domains: tuple[tuple[int, str], ...] = ()

    @property
    def controller_addresses(self) -> list[str]:
        ports = [self.port] if self.etcd is None else [self.port, self.etcd.standby]
        return [f"{HOST}:{port}" for port in ports]

    @property
    def url(self) -> str:
        return f"sdrs://{','.join(self.controller_addresses)}"

    @property
    def node_numbers(self) -> list[int]:
        return [number for number in range(1, len(self.disk_counts) + 1) if number not in self.removed]

    def grown(self, node_count: int, disks_per_node: int) -> Layout:
        """With nodes added up to ``node_count``; those that exist keep their disks, and none is ever taken away."""
        return self.with_more(max(0, node_count - len(self.node_numbers)), disks_per_node)

    def with_more(self, count: int, disks_per_node: int, domain: str = "") -> Layout:
        """``domain``: of the new ones; without it each is one of its own."""
        first = len(self.disk_counts) + 1
        placed = tuple((number, domain) for number in range(first, first + count)) if domain else ()
        return replace(self, disk_counts=self.disk_counts + (disks_per_node,) * count, domains=(*self.domains, *placed))

    def without(self, number: int) -> Layout:
        return replace(self, removed=tuple(sorted({*self.removed, number})))


def is_ours(directory: Path) -> bool:
    return (directory / _MARKER).is_file()


def read_layout(directory: Path) -> Layout | None:
    """The cluster in this folder; None if the folder is absent or empty. RefusedError if it is somebody else's."""
    try:
        marker = json.loads((directory / _MARKER).read_text(encoding="utf-8"))
        if marker["format"] not in (_FORMAT, _FORMAT_WITH_ETCD):
            raise RefusedError(
                f"{directory} was made by another version of SDRS (format {marker['format']})", dir=directory
            )
        etcd = marker["etcd"] if marker["format"] == _FORMAT_WITH_ETCD else None
        return Layout(
            int(marker["port"]),
            _whole_numbers(marker["disk_counts"]),
            EtcdPorts(int(etcd["standby"]), _whole_numbers(etcd["clients"]), _whole_numbers(etcd["peers"]))
            if etcd is not None
            else None,
            removed=_whole_numbers(marker.get("removed", [])),
            domains=tuple((int(number), str(domain)) for number, domain in marker.get("domains", [])),
        )
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        raise RefusedError(f"{directory} is not a folder: choose another with --dir", dir=directory) from None
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError(
            f"{directory / _MARKER} cannot be read ({error}): restore it, or choose another --dir"
        ) from error
    foreign = directory.is_dir() and any(not _is_beginning(entry.name) for entry in directory.iterdir())
    # Looked for again: another `up` may have made its cluster here between the two looks.
    if foreign and not is_ours(directory):
        raise RefusedError(
            f"{directory} is not empty and holds no SDRS cluster: choose an empty folder with --dir", dir=directory
        )
    return None


def _whole_numbers(values: list[int]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _is_beginning(name: str) -> bool:
    """What an `up` leaves before its marker is in place."""
    return name == _LOCK or name.startswith(f".{_MARKER}.")


def write_layout(directory: Path, layout: Layout) -> None:
    marker: dict[str, object] = {"format": _FORMAT, "port": layout.port, "disk_counts": layout.disk_counts}
    if layout.etcd is not None:
        marker |= {"format": _FORMAT_WITH_ETCD, "etcd": asdict(layout.etcd)}
    if layout.removed:
        marker["removed"] = layout.removed
    if layout.domains:
        marker["domains"] = layout.domains
    replace_file(directory / _MARKER, json.dumps(marker) + "\n")
    (directory / "logs").mkdir(exist_ok=True)


@contextmanager
def folder_lock(directory: Path, timeout_seconds: float) -> Iterator[None]:
    """One `up` or `down` at a time; it goes away with its process, however that ends."""
    path = directory / _LOCK
    deadline = time.monotonic() + timeout_seconds
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # `down --purge` may have removed the file while we waited: then the lock on it protects nothing.
            if path.exists() and path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                break
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                file.close()
                raise RefusedError(
                    f"another `sdrs up` or `sdrs down` (pid {owner}) is still working on {directory}: try again later"
                ) from None
            time.sleep(0.1)
        file.close()
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def remove_marker(directory: Path) -> list[Path]:
    """The last step of a purge: one that was cut short can be run again. What was left, because it is not ours."""
    (directory / _MARKER).unlink(missing_ok=True)
    (directory / _LOCK).unlink(missing_ok=True)
    left = sorted(directory.iterdir())
    if not left:
        directory.rmdir()
    return left
