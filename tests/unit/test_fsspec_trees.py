"""The names in a step, and what edits make of them; paths, and what is written."""

from __future__ import annotations

import pytest

from sdrs.fsspec.contents import SPOOL_BYTES, Joined, Spool
from sdrs.fsspec.places import Place, file_place, find_place
from sdrs.fsspec.trees import Copy, Edit, Node, Put, Remove, Tree, apply, entries_of, follow
from sdrs.state import decode_files_index, encode_entries


def spool(data: bytes) -> Spool:
    spool = Spool()
    spool.write(data)
    return spool


def put(name: str, data: bytes = b"") -> Put:
    return Put(tuple(name.split("/")), spool(data), 1)


def edited(tree: Tree, *edits: Edit) -> Tree:
    return apply(tree, edits, "/".join)


def names(tree: Tree) -> list[str]:
    return ["/".join(parts) for parts in sorted(tree)]


def test_folders_come_and_go_with_what_is_in_them() -> None:
    tree = edited({}, put("a/b/c"), put("a/d"))
    assert names(tree) == ["a", "a/b", "a/b/c", "a/d"]
    assert names(edited(tree, Remove(("a", "b", "c")))) == ["a", "a/d"]
    assert edited(tree, Remove(("a",), recursive=True)) == {}
    assert names(tree) == ["a", "a/b", "a/b/c", "a/d"]  # a tree is never changed itself


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (put("a"), IsADirectoryError),
        (put("a/d/e"), NotADirectoryError),
        (Remove(("a",)), IsADirectoryError),
        (Remove(("x",)), FileNotFoundError),
        (Copy(("x",), ("y",)), FileNotFoundError),
        (Copy(("a",), ("y",)), IsADirectoryError),
        (Put(("a", "d"), Spool(), 1, exclusive=True), FileExistsError),
    ],
)
def test_what_cannot_be_is_refused_as_a_file_system_does(edit: Edit, error: type[OSError]) -> None:
    with pytest.raises(error):
        edited(edited({}, put("a/d")), edit)


def test_links_lead_to_files_and_a_circle_to_nothing() -> None:
    file = Node("file", content=spool(b"x"))
    tree = {
        ("d",): Node("dir"),
        ("d", "up"): Node("link", target="../file"),
        ("round",): Node("link", target="round"),
        ("gone",): Node("link", target="absent"),
        ("file",): file,
    }
    assert follow(tree, ("d", "up")) is file
    assert follow(tree, ("round",)) is None
    assert follow(tree, ("gone",)) is None


def test_the_index_of_a_tree_is_one_that_is_read_again() -> None:
    tree = edited({}, put("z/y", b"123"), put("a", b"4"), Put(("a",), spool(b"5"), 2, append=True))
    encoded = encode_entries(entries_of(tree), lambda entry: tree[entry.parts].content or Spool())
    index = decode_files_index(b"".join(bytes(segment) for segment in encoded.blobs[0].segments()))
    assert [(entry.name, entry.size_bytes) for entry in index.entries] == [("a", 2), ("z", 0), ("z/y", 3)]


@pytest.mark.parametrize("size_bytes", [0, 10, SPOOL_BYTES + 3], ids=["empty", "in memory", "in a file"])
def test_what_is_written_can_be_read_as_often_as_needed(size_bytes: int) -> None:
    data = bytes(range(251)) * (size_bytes // 251 + 1)
    written = spool(data[:size_bytes])
    written.write(b"end")
    for _ in range(2):
        assert b"".join(map(bytes, written.segments())) == data[:size_bytes] + b"end"
    assert b"".join(map(bytes, Joined(spool(b"before "), written).segments()))[:7] == b"before "
    written.close()


def test_paths_are_taken_apart() -> None:
    assert find_place("job/1/a/b") == Place("job", 1, ("a", "b"))
    assert find_place("") == Place()
    for wrong in ("job/x", "job/01", "job/1//a", "job/1/../a", "bad name/1", "job/99999999999999999999"):
        with pytest.raises(FileNotFoundError):
            find_place(wrong)
    for wrong in ("job", "job/1", "job/x/a"):
        with pytest.raises(OSError, match="job/step/name"):
            file_place(wrong)
