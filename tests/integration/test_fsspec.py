"""sdrs:// on real daemons: what is seen, what a write makes, and who may write."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

import sdrs
from sdrs.fsspec import SdrsFileSystem, writing
from sdrs.fsspec.contents import Spool
from sdrs.fsspec.trees import Put
from sdrs.fsspec.writing import StepWriter
from sdrs_core.attempts import Attempt
from tests.support.cluster import LocalCluster, free_port
from tests.support.stores import flip_bit

MIB = 1 << 20


@pytest.fixture
def fs(shared_cluster: LocalCluster) -> SdrsFileSystem:
    return SdrsFileSystem(shared_cluster.address)


def generations(fs: SdrsFileSystem, job: str) -> int:
    return len(fs.cluster.checkpoints(job).list(all_states=True))


def test_saved_files_are_listed_and_read_in_ranges(fs: SdrsFileSystem, tmp_path: Path) -> None:
    data = np.random.default_rng(7).bytes(3 * MIB + 17)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.bin").write_bytes(data)
    (tmp_path / "note.txt").write_text("one\ntwo\n")
    (tmp_path / "link").symlink_to("sub/weights.bin")
    fs.cluster.checkpoints("looked-at").save_files(5, tmp_path).wait()
    assert "looked-at" in fs.ls("", detail=False)
    assert fs.ls("looked-at", detail=False) == ["looked-at/5"]
    assert fs.ls("looked-at/5", detail=False) == ["looked-at/5/link", "looked-at/5/note.txt", "looked-at/5/sub"]
    assert fs.glob("looked-at/*/**/*.bin") == ["looked-at/5/sub/weights.bin"]
    assert fs.size("looked-at/5/link") == len(data)
    assert fs.cat("looked-at/5/link") == data
    assert fs.cat_file("looked-at/5/sub/weights.bin", MIB - 3, 2 * MIB + 3) == data[MIB - 3 : 2 * MIB + 3]
    assert fs.cat_file("looked-at/5/sub/weights.bin", -5) == data[-5:]
    with fs.open("looked-at/5/sub/weights.bin") as file:
        file.seek(2 * MIB)
        assert file.read(10) == data[2 * MIB : 2 * MIB + 10]
        assert pickle.loads(pickle.dumps(file)).read(3) == data[2 * MIB + 10 : 2 * MIB + 13]
    with fsspec.open(fs.unstrip_protocol("looked-at/5/note.txt"), "r") as lines:
        assert list(lines) == ["one\n", "two\n"]
    for wrong in ("looked-at/6", "looked-at/5/absent", "looked-at/05", "nobody", "looked-at/5/../5/note.txt"):
        assert not fs.exists(wrong)
        with pytest.raises(FileNotFoundError):
            fs.open(f"{wrong}/x")
    with pytest.raises(IsADirectoryError):
        fs.open("looked-at/5/sub")


def test_damaged_bytes_are_an_error_and_never_read(shared_cluster: LocalCluster, fs: SdrsFileSystem) -> None:
    before = set(shared_cluster.fragments())
    large = bytes(20 * MIB)  # in a blob of its own, beside the one with the names
    fs.pipe("damaged/1/file", large)
    fragment = max(set(shared_cluster.fragments()) - before, key=lambda path: path.stat().st_size)
    flip_bit(fragment, 10 * MIB)
    assert fs.size("damaged/1/file") == len(large)
    assert fs.cat_file("damaged/1/file", 0, MIB) == bytes(MIB)
    with pytest.raises(OSError, match="damaged"):
        fs.cat_file("damaged/1/file", 9 * MIB, 11 * MIB)


def test_ranks_are_joined_and_kept_apart_where_their_names_clash(fs: SdrsFileSystem, tmp_path: Path) -> None:
    checkpoints = fs.cluster.checkpoints("ranks", attempt="1")
    for step, names in ((1, ("a", "b")), (2, ("same", "same"))):
        savings = []
        for rank, name in enumerate(names):
            folder = tmp_path / f"{step}-{rank}"
            folder.mkdir()
            (folder / name).write_text(f"rank {rank}")
            savings.append(checkpoints.save_files(step, folder, rank=rank, world_size=2))
        for saving in savings:
            saving.wait()
    assert fs.find("ranks/1") == ["ranks/1/a", "ranks/1/b"]
    assert fs.cat("ranks/1/b") == b"rank 1"
    assert fs.find("ranks/2") == ["ranks/2/rank-00000/same", "ranks/2/rank-00001/same"]
    assert fs.cat("ranks/2/rank-00001/same") == b"rank 1"


def test_a_state_is_shown_as_safetensors_and_not_written_to(fs: SdrsFileSystem) -> None:
    fs.cluster.checkpoints("state").save(3, {"w": np.arange(5)}).wait()
    (blob,) = fs.find("state/3")
    assert blob == "state/3/rank-00000/blob-0000.safetensors"
    assert (load_safetensors(fs.cat(blob))["w"] == np.arange(5)).all()
    with pytest.raises(PermissionError, match=r"belongs to a run .* another job name"):
        fs.pipe("state/3/more", b"x")
    assert fs.cluster.checkpoints("state").restore()["w"][4] == 4
    ours = Attempt("anything", 0, f"{writing.OWNER}test")
    fs.cluster.checkpoints("state-of-files", attempt=ours).save(3, {"w": 1}).wait()
    with pytest.raises(PermissionError, match="holds a state: use restore"):
        fs.pipe("state-of-files/3/more", b"x")
    assert fs.cluster.checkpoints("state-of-files").restore() == {"w": 1}


def test_a_write_keeps_the_other_files_and_open_files_keep_theirs(fs: SdrsFileSystem, tmp_path: Path) -> None:
    large = np.random.default_rng(8).bytes(20 * MIB)
    fs.pipe({"kept/1/a": b"first", "kept/1/deep/er/b": large})
    with fs.open("kept/1/a") as before:
        fs.pipe("kept/1/a", b"second")
        assert before.read() == b"first"
    assert fs.cat("kept/1/a") == b"second"
    assert fs.cat("kept/1/deep/er/b") == large
    assert generations(fs, "kept") == 2
    fs.mv("kept/1/deep", "kept/1/moved", recursive=True)
    fs.cp("kept/1/a", "kept/2/a")
    assert generations(fs, "kept") == 4
    assert fs.find("kept") == ["kept/1/a", "kept/1/moved/er/b", "kept/2/a"]
    assert fs.cat("kept/1/moved/er/b") == large
    fs.cluster.checkpoints("kept").restore_files(tmp_path, 1)
    assert (tmp_path / "moved" / "er" / "b").read_bytes() == large


def test_a_transaction_is_one_generation_or_none(fs: SdrsFileSystem) -> None:
    fs.pipe("trans/1/old", b"old")
    with fs.transaction:
        fs.pipe("trans/1/a", b"a")
        with fs.open("trans/1/b", "wb") as file:
            file.write(b"b")
        fs.mv("trans/1/b", "trans/1/c")
        fs.rm("trans/1/old")
        assert fs.find("trans/1") == ["trans/1/old"]
    assert fs.find("trans/1") == ["trans/1/a", "trans/1/c"]
    assert fs.cat("trans/1/c") == b"b"
    assert generations(fs, "trans") == 2

    def fails(*, raises: bool = False, removes: str = "", writes: str = "trans/1/d") -> None:
        with fs.transaction:
            fs.pipe("trans/1/d", b"d")
            fs.pipe(writes, b"d")
            if removes:
                fs.rm(removes)
            if raises:
                raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fails(raises=True)
    with pytest.raises(FileNotFoundError):
        fails(removes="trans/1/never there")
    with pytest.raises(ValueError, match="one generation of one step"):
        fails(writes="trans/2/d")
    assert fs.find("trans") == ["trans/1/a", "trans/1/c"]
    fs.pipe("trans/1/g", b"g")  # and the file system goes on
    assert fs.exists("trans/1/g")


@pytest.mark.parametrize("mode", ["wb", "w"])
def test_a_block_that_fails_writes_nothing(fs: SdrsFileSystem, mode: str) -> None:
    def fail() -> None:
        with fs.open(f"halves/1/{mode}", mode) as file:
            file.write("half" if mode == "w" else b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not fs.exists("halves/1")


@pytest.mark.parametrize("options", [{"mode": "wb"}, {"mode": "w"}, {"mode": "wb", "compression": "gzip"}])
def test_a_block_of_fsspec_itself_that_fails_writes_nothing(fs: SdrsFileSystem, options: dict[str, str]) -> None:
    url = fs.unstrip_protocol("own-halves/1/file")
    half: Any = "half" if options["mode"] == "w" else b"half"

    def fail() -> None:
        with fsspec.open(url, **options) as file:
            file.write(half)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not fs.exists("own-halves/1")


def test_what_is_written_while_an_exception_is_handled_is_kept(fs: SdrsFileSystem) -> None:
    early = fs.open("told/1/early", "wb")
    try:
        raise RuntimeError
    except RuntimeError:
        early.write(b"opened before it")
        early.close()
        with fsspec.open(fs.unstrip_protocol("told/1/report"), "w") as report:
            report.write("it failed")
    assert fs.cat("told/1/early") == b"opened before it"
    assert fs.cat("told/1/report") == b"it failed"


def test_append_and_exclusive_modes(fs: SdrsFileSystem) -> None:
    with fs.open("modes/1/log", "ab") as file:
        file.write(b"one,")
    with fs.open("modes/1/log", "ab") as file:
        assert file.tell() == 4
        file.write(b"two")
    assert fs.cat("modes/1/log") == b"one,two"
    one, other = fs.open("modes/1/new", "xb"), fs.open("modes/1/new", "xb")
    one.write(b"1")
    one.close()
    with pytest.raises(FileExistsError):
        other.close()  # the name was free when it was opened, and is not when it is committed
    with pytest.raises(FileExistsError):
        fs.open("modes/1/new", "xb")
    with pytest.raises(NotADirectoryError):
        fs.pipe("modes/1/log/below", b"")
    with pytest.raises(OSError, match="job/step/name"):
        fs.pipe("modes/latest/log", b"")


def test_removing_the_last_file_deletes_the_step(fs: SdrsFileSystem) -> None:
    fs.pipe({"going/1/a": b"a", "going/1/d/b": b"b", "going/2/c": b"c"})
    fs.rm("going/1/d/b")
    assert fs.ls("going/1", detail=False) == ["going/1/a"]
    with pytest.raises(IsADirectoryError):
        fs.rm("going/1")
    fs.rm("going/1/a")
    assert fs.ls("going", detail=False) == ["going/2"]
    assert [save.step for save in fs.cluster.checkpoints("going").list()] == [2]
    fs.rm("going", recursive=True)
    assert not fs.exists("going")
    assert "going" not in fs.ls("", detail=False)
    fs.pipe("going/1/again", b"x")  # what was removed does not come back with the next write
    assert fs.find("going") == ["going/1/again"]


def test_the_job_of_a_run_is_not_written_to_but_its_steps_can_be_removed(fs: SdrsFileSystem, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    run = fs.cluster.checkpoints("owned")
    run.save_files(1, tmp_path).wait()
    for change in (lambda: fs.pipe("owned/1/b", b""), lambda: fs.rm("owned/1/file"), lambda: fs.pipe("owned/2/a", b"")):
        with pytest.raises(PermissionError, match="belongs to a run"):
            change()
    run.save_files(2, tmp_path).wait()  # it was not superseded
    fs.rm("owned/1", recursive=True)
    assert fs.ls("owned", detail=False) == ["owned/2"]


def test_a_run_takes_a_job_over_from_files(fs: SdrsFileSystem) -> None:
    fs.pipe("taken/1/a", b"a")
    fs.cluster.checkpoints("taken").save(2, {"x": 1}).wait()
    with pytest.raises(PermissionError, match="belongs to a run"):
        fs.pipe("taken/1/b", b"b")


def test_a_forked_child_reads_and_writes_through_the_same_file_system(fs: SdrsFileSystem) -> None:
    fs.pipe("forked/1/parent", b"p")
    assert fs.cat("forked/1/parent") == b"p"
    child = os.fork()
    if child == 0:
        try:
            fs.pipe("forked/1/child", fs.cat("forked/1/parent"))
        finally:
            os._exit(sys.exc_info()[0] is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert fs.cat("forked/1/child") == b"p"


WRITER = """
import sys
from sdrs.fsspec import SdrsFileSystem
fs = SdrsFileSystem(sys.argv[1])
for number in range(6):
    fs.pipe(f"raced/1/{sys.argv[2]}-{number}", sys.argv[2].encode())
"""


def test_two_processes_that_write_to_one_step_both_succeed(shared_cluster: LocalCluster, fs: SdrsFileSystem) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, shared_cluster.address, name], stderr=subprocess.PIPE)
        for name in ("one", "two")
    ]
    failures = [writer.communicate(timeout=100)[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], failures
    assert fs.find("raced/1") == [f"raced/1/{name}-{number}" for name in ("one", "two") for number in range(6)]


@pytest.mark.parametrize("moment", ["_begin", "_settle"], ids=["before it begins", "after it looked"])
def test_what_another_writer_commits_in_between_is_kept(
    fs: SdrsFileSystem, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    job = f"between{moment}"
    fs.pipe(f"{job}/1/first", b"")
    monkeypatch.setattr(writing, "PATIENCE_SECONDS", 0.1)
    carry_out = getattr(StepWriter, moment)
    others = [StepWriter(*fs.connected, job, 1, pool=None, level=sdrs.Level.NONE)]

    def with_another(self: StepWriter, given: object) -> object:
        found = carry_out(self, given) if moment == "_settle" else None
        while others:
            others.pop().write([Put(("other",), Spool(), 0)])
        return found if moment == "_settle" else carry_out(self, given)

    monkeypatch.setattr(StepWriter, moment, with_another)
    fs.pipe(f"{job}/1/mine", b"")
    assert not others
    assert fs.find(f"{job}/1") == [f"{job}/1/first", f"{job}/1/mine", f"{job}/1/other"]


def test_a_cluster_out_of_reach_is_an_error_and_not_an_absent_file() -> None:
    with pytest.raises(ConnectionError, match="no controller answers"):
        SdrsFileSystem(f"127.0.0.1:{free_port()}").exists("job/1/file")


def test_without_a_host_it_is_the_default_cluster(
    shared_cluster: LocalCluster, fs: SdrsFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.pipe("default/1/a", b"a")
    monkeypatch.setenv("SDRS_URL", shared_cluster.url)
    with fsspec.open("sdrs:///default/1/a") as file:
        assert file.read() == b"a"
    assert sdrs.connect().checkpoints("default").latest() is not None
