"""The folder of a cluster on this machine: what lies where, and whether it is ours.

::

    DIR/cluster.json        the marker: port, nodes, disks of each
    DIR/controller.toml     one configuration per daemon, written anew by each `sdrs up`
    DIR/node-1.toml
    DIR/controller/         one data folder per daemon, with its run.json while it runs
    DIR/node-1/disk-1/      the disks of a node
    DIR/logs/node-1.log
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sdrs.cli.pointer import replace_file
from sdrs_core.errors import RefusedError

DEFAULT_PORT = 7070
DEFAULT_NODE_COUNT = 3
HOST = "127.0.0.1"
_MARKER = "cluster.json"
_LOCK = ".lock"
_FORMAT = 1

Sections = dict[str, dict[str, object]]  # of a TOML file; "" is what comes before the first


def default_dir() -> Path:
    home = os.environ.get("SDRS_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".local" / "share" / "sdrs").resolve()


@dataclass(frozen=True, slots=True)
class Layout:
    """What the marker records. ``disk_counts`` has one entry per node, in order."""

    port: int
    disk_counts: tuple[int, ...]

    def grown(self, node_count: int, disks_per_node: int) -> Layout:
        """With nodes added up to ``node_count``; those that exist keep their disks, and none is ever taken away."""
        missing = max(0, node_count - len(self.disk_counts))
        return Layout(self.port, self.disk_counts + (disks_per_node,) * missing)


@dataclass(frozen=True, slots=True)
class Daemon:
    """One process of the cluster and its files."""

    name: str
    dir: Path
    settings: str = field(repr=False)

    @property
    def config(self) -> Path:
        return self.dir / f"{self.name}.toml"

    @property
    def data_dir(self) -> Path:
        return self.dir / self.name

    @property
    def log(self) -> Path:
        return self.dir / "logs" / f"{self.name}.log"

    def write_config(self) -> None:
        self.data_dir.mkdir(exist_ok=True)
        replace_file(self.config, self.settings)


def controller_daemon(directory: Path, port: int) -> Daemon:
    settings: Sections = {"": {"roles": ["controller"]}, "controller": {"listen": f"{HOST}:{port}"}}
    return _daemon(directory, "controller", settings)


def node_daemon(directory: Path, name: str, port: int, disk_count: int) -> Daemon:
    disks = [str(directory / name / f"disk-{number}") for number in range(1, disk_count + 1)]
    node: dict[str, object] = {
        "id": name,
        "listen": f"{HOST}:0",
        "data_listen": f"{HOST}:0",
        "controllers": [f"{HOST}:{port}"],
        # Each node counts as a failure domain, so that placement behaves here as it will on many machines.
        "domain": name,
        "disks": disks,
    }
    return _daemon(directory, name, {"": {"roles": ["node"]}, "node": node})


def _daemon(directory: Path, name: str, sections: Sections) -> Daemon:
    sections[""] |= {"data_dir": str(directory / name), "log_format": "console"}
    lines = ["# Written by `sdrs up`, and again each time it runs."]
    for section, values in sections.items():
        lines += ["", f"[{section}]"] if section else []
        # TOML's strings, numbers and arrays are JSON's.
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return Daemon(name, directory, "\n".join(lines) + "\n")


def node_daemons(directory: Path, layout: Layout) -> list[Daemon]:
    return [
        node_daemon(directory, f"node-{number}", layout.port, disk_count)
        for number, disk_count in enumerate(layout.disk_counts, start=1)
    ]


def is_ours(directory: Path) -> bool:
    return (directory / _MARKER).is_file()


def read_layout(directory: Path) -> Layout | None:
    """The cluster in this folder; None if the folder is absent or empty. RefusedError if it is somebody else's."""
    try:
        marker = json.loads((directory / _MARKER).read_text(encoding="utf-8"))
        if marker["format"] != _FORMAT:
            raise RefusedError(
                f"{directory} was made by another version of SDRS (format {marker['format']})", dir=directory
            )
        return Layout(int(marker["port"]), tuple(int(count) for count in marker["disk_counts"]))
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


def _is_beginning(name: str) -> bool:
    """What an `up` leaves before its marker is in place."""
    return name == _LOCK or name.startswith(f".{_MARKER}.")


def write_layout(directory: Path, layout: Layout) -> None:
    marker = {"format": _FORMAT, "port": layout.port, "disk_counts": layout.disk_counts}
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


def purge(directory: Path, layout: Layout) -> list[Path]:
    """Delete the cluster's files and nothing else; what was left because it is not ours."""
    shutil.rmtree(directory / "logs", ignore_errors=True)
    for daemon in [*node_daemons(directory, layout), controller_daemon(directory, layout.port)]:
        if daemon.data_dir.exists():
            shutil.rmtree(daemon.data_dir)
        daemon.config.unlink(missing_ok=True)
    # The marker goes last: a purge that was cut short can be run again.
    (directory / _MARKER).unlink(missing_ok=True)
    (directory / _LOCK).unlink(missing_ok=True)
    left = sorted(directory.iterdir())
    if not left:
        directory.rmdir()
    return left
