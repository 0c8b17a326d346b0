"""The names in a step, and what edits make of them. Pure: nothing is read or sent here.

Folders are there because of what is in them: a write makes those above it, and one that becomes empty goes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sdrs.fsspec.contents import Joined
from sdrs.state.blobs import Source
from sdrs.state.files_index import FileEntry, Kind

FILE_MODE = 0o644
DIR_MODE = 0o755

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One name; ``content`` is a file's, ``target`` a link's."""

    kind: Kind
    mode: int = 0
    mtime_ns: int = 0
    content: Source | None = None
    target: str = ""

    @property
    def size_bytes(self) -> int:
        return self.content.size_bytes if self.content else 0


Tree = Mapping[Parts, Node]


@dataclass(frozen=True, slots=True)
class Put:
    """``exclusive``: the name must be new. ``append``: to what is there."""

    parts: Parts
    content: Source
    mtime_ns: int
    exclusive: bool = False
    append: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Without parts it is the whole step that goes."""

    parts: Parts
    recursive: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A file within its step."""

    source: Parts
    target: Parts


Edit = Put | Remove | Copy


def children(tree: Tree, parts: Parts) -> Iterator[tuple[Parts, Node]]:
    depth = len(parts)
    return ((name, node) for name, node in tree.items() if len(name) == depth + 1 and name[:depth] == parts)


def follow(tree: Tree, parts: Parts) -> Node | None:
    """The node at ``parts``; a link that leads to a file of the step is that file."""
    seen: set[Parts] = set()
    while (node := tree.get(parts)) is not None and node.kind == "link" and parts not in seen:
        seen.add(parts)
        target = os.path.normpath("/".join([*parts[:-1], node.target]))
        parts = tuple(target.split("/"))
    return None if node is None or node.kind == "link" else node


def merge(ranks: Sequence[Tree]) -> Tree:
    """All ranks' names in one tree; if two ranks have the same one, each rank's under ``rank-00000`` and so on."""
    merged: dict[Parts, Node] = {}
    for tree in ranks:
        for parts, node in tree.items():
            if parts in merged and not node.kind == merged[parts].kind == "dir":
                return apart(ranks)
            merged[parts] = node
    return merged


def apart(ranks: Sequence[Tree]) -> Tree:
    trees = {f"rank-{rank:05}": tree for rank, tree in enumerate(ranks)}
    return {
        **{(top,): Node("dir", DIR_MODE) for top in trees},
        **{(top, *parts): node for top, tree in trees.items() for parts, node in tree.items()},
    }


def entries_of(tree: Tree) -> list[FileEntry]:
    """As an index lists them: each folder before what is in it."""
    return [
        FileEntry(parts, node.kind, node.mode, node.mtime_ns, size_bytes=node.size_bytes, target=node.target)
        for parts, node in sorted(tree.items(), key=lambda item: item[0])
    ]


def apply(tree: Tree, edits: Sequence[Edit], title: Callable[[Parts], str]) -> Tree:
    """``tree`` after ``edits``, in order; ``title`` names a path to the user. Raises as a file system does."""
    changed = dict(tree)
    for edit in edits:
        match edit:
            case Put():
                _put(changed, edit, title)
            case Remove():
                _remove(changed, edit, title)
            case Copy():
                node = follow(changed, edit.source)
                if node is None or node.content is None:
                    raise _missing(changed, edit.source, title)
                _place(changed, edit.target, node, title)
    return changed


def _put(tree: dict[Parts, Node], edit: Put, title: Callable[[Parts], str]) -> None:
    if edit.exclusive and edit.parts in tree:
        raise FileExistsError(errno.EEXIST, "it exists", title(edit.parts))
    node = Node("file", FILE_MODE, edit.mtime_ns, edit.content)
    before = follow(tree, edit.parts)
    if edit.append and before and before.content:
        node = replace(before, content=Joined(before.content, edit.content), mtime_ns=edit.mtime_ns)
    _place(tree, edit.parts, node, title)


def _place(tree: dict[Parts, Node], parts: Parts, node: Node, title: Callable[[Parts], str]) -> None:
    if parts in tree and tree[parts].kind == "dir":
        raise IsADirectoryError(errno.EISDIR, "it is a folder", title(parts))
    for depth in range(1, len(parts)):
        above = tree.setdefault(parts[:depth], Node("dir", DIR_MODE, node.mtime_ns))
        if above.kind != "dir":
            raise NotADirectoryError(errno.ENOTDIR, "a name above it is not a folder", title(parts))
    tree[parts] = node


def _remove(tree: dict[Parts, Node], edit: Remove, title: Callable[[Parts], str]) -> None:
    depth = len(edit.parts)
    inside = [parts for parts in tree if parts[:depth] == edit.parts]
    if not inside:
        raise FileNotFoundError(errno.ENOENT, "no such file or folder", title(edit.parts))
    if (depth == 0 or tree[edit.parts].kind == "dir") and not edit.recursive:
        raise IsADirectoryError(errno.EISDIR, "it is a folder: remove it with recursive=True", title(edit.parts))
    for parts in inside:
        del tree[parts]
    for length in range(depth - 1, 0, -1):
        above = edit.parts[:length]
        if any(parts[:length] == above and len(parts) > length for parts in tree):
            break
        tree.pop(above, None)


def _missing(tree: Tree, parts: Parts, title: Callable[[Parts], str]) -> OSError:
    node = tree.get(parts)
    if node is not None and node.kind == "dir":
        return IsADirectoryError(errno.EISDIR, "it is a folder", title(parts))
    return FileNotFoundError(errno.ENOENT, "no such file", title(parts))
