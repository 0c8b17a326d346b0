"""The half that looks and reads: the root lists jobs, a job its steps, a step its files and folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from sdrs.address import SCHEME, cluster_url, split_url
from sdrs.cluster import Cluster, connect
from sdrs.fsspec.failures import os_errors
from sdrs.fsspec.generations import Generation, Generations, StoredBytes
from sdrs.fsspec.places import Place, find_place
from sdrs.fsspec.trees import Node, children, follow
from sdrs.save.compression import Compress, resolve_compression
from sdrs_core.checkpoints import Save
from sdrs_core.levels import Level, parse_level

Info = dict[str, Any]

# By URL: fsspec makes a file system for each thread, and a cluster serves all of them.
_clusters: dict[str, tuple[Cluster, Generations]] = {}


class ReadingFileSystem(AbstractFileSystem):
    """``hosts``: ``host:port[,host:port]``, else SDRS_URL, else the cluster on this machine.

    ``pool`` and ``level`` say where new generations go; without them, to the pool of the one before.
    """

    protocol = "sdrs"
    root_marker = ""
    blocksize = 4 << 20

    def __init__(
        self,
        hosts: str = "",
        pool: str | None = None,
        level: str | None = None,
        compress: Compress | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._url = cluster_url(f"{SCHEME}{hosts}" if hosts else None)
        self._pool = pool
        self._level = parse_level(level) if level else Level.NONE
        self._compression = resolve_compression(compress)

    @property
    def cluster(self) -> Cluster:
        return self.connected[0]

    @property
    def generations(self) -> Generations:
        return self.connected[1]

    @property
    def connected(self) -> tuple[Cluster, Generations]:
        found = _clusters.get(self._url)
        if found is None:
            with os_errors(self._url):
                cluster = connect(self._url)
            found = _clusters.setdefault(self._url, (cluster, Generations(cluster)))
        return found

    # Paths

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return split_url(stringify_path(path))[1]

    def unstrip_protocol(self, name: str) -> str:
        return f"{self._url.rstrip('/')}/{self._strip_protocol(name)}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        hosts = split_url(path)[0]
        return {"hosts": hosts} if hosts else {}

    @property
    def fsid(self) -> str:
        return f"sdrs-{self.cluster.id}"

    # Looking

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        place = find_place(path)
        with os_errors(path):
            infos = list(self._list(place))
        return infos if detail else [info["name"] for info in infos]

    def _list(self, place: Place) -> Iterator[Info]:
        if not place.job:
            jobs = [Place(job.name) for job in self.cluster.jobs()]
            yield from (_folder(job) for job in sorted(jobs, key=lambda job: job.path) if self._has_steps(job))
        elif place.step is None:
            saves = self.cluster.checkpoints(place.job).list()
            if not saves:
                raise missing(place)
            yield from (_step(save) for save in reversed(saves))
        else:
            generation, node = self._look(place)
            if node is not None and node.kind != "dir":
                yield _info(place, node, generation)
                return
            for parts, child in sorted(children(generation.tree, place.parts), key=lambda item: item[0]):
                yield _info(Place(place.job, place.step, parts), child, generation)

    def _has_steps(self, place: Place) -> bool:
        return self.cluster.checkpoints(place.job).latest() is not None

    def _look(self, place: Place) -> tuple[Generation, Node | None]:
        """The newest generation and the node there; None is the top of the step."""
        assert place.step is not None
        generation = self.generations.open(self.generations.find(place.job, place.step))
        node = generation.tree.get(place.parts)
        if place.parts and node is None:
            raise missing(place)
        return generation, node

    def info(self, path: str, **options: Any) -> Info:
        path = self._strip_protocol(path)
        place = find_place(path)
        with os_errors(path):
            if place.step is None:
                if place.job and not self._has_steps(place):
                    raise missing(place)
                return _folder(place)
            if not place.parts:
                return _step(self.generations.find(place.job, place.step))
            generation, node = self._look(place)
            assert node is not None
            return _info(place, node, generation)

    # A cluster that is out of reach says nothing of what exists: only what is known to be missing is.

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        return self._is(path, "directory")

    def isfile(self, path: str) -> bool:
        return self._is(path, "file")

    def _is(self, path: str, kind: str) -> bool:
        try:
            return bool(self.info(path)["type"] == kind)
        except FileNotFoundError:
            return False

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self.info(path).get("mtime", 0), UTC)

    created = modified  # a file is written once, and then replaced

    # Reading

    def content(self, path: str) -> tuple[StoredBytes, Info]:
        """The bytes of a file, and what is told of it."""
        place = find_place(path)
        if not place.parts:
            self.info(path)  # FileNotFoundError if it is none
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        generation, node = self._look(place)
        assert node is not None
        file = follow(generation.tree, place.parts)
        if file is None:
            raise missing(place)
        if not isinstance(file.content, StoredBytes):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        return file.content, _info(place, node, generation)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        path = self._strip_protocol(path)
        with os_errors(path):
            content, _ = self.content(path)
            first, last, _step = slice(start, end).indices(content.size_bytes)
            return bytes(content.read(first, max(first, last)))


def missing(place: Place) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place.path)


def _folder(place: Place) -> Info:
    return {"name": place.path, "size": 0, "type": "directory"}


def _step(save: Save) -> Info:
    return {
        **_folder(Place(save.job, save.step)),
        "mtime": save.committed_unix_ms / 1000,
        "level": str(save.level),
        "kind": str(save.kind),
        "generation": save.save_id,
    }


def _info(place: Place, node: Node, generation: Generation) -> Info:
    """A link to a file of the step is that file; other links are neither file nor folder: no walk is endless."""
    info: Info = {
        "name": place.path,
        "size": node.size_bytes,
        "type": "directory" if node.kind == "dir" else "file",
        "mtime": node.mtime_ns / 1e9,
        "generation": generation.save.save_id,
    }
    if node.kind == "link":
        file = follow(generation.tree, place.parts)
        is_file = file is not None and file.content is not None
        info |= {"islink": True, "destination": node.target, "type": "file" if is_file else "link"}
        info["size"] = file.size_bytes if file else 0
    return info
