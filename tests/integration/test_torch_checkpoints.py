"""torch.distributed.checkpoint over a real cluster, with the real library and real ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

import sdrs
from sdrs import errors
from sdrs.torch import StorageReader, StorageWriter
from tests.support import torch_models
from tests.support.cluster import LocalCluster, running_cluster
from tests.support.states import MIB
from tests.support.stores import flip_bit
from tests.support.torch_ranks import run_ranks

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.fixture(scope="module")
def torch_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("torch"), node_count=2) as cluster:
        with cluster.connect() as connection:
            connection.create_pool("mirrored", level="L2", mirrors=2)
        yield cluster


@pytest.fixture
def job(torch_cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    return f"{torch_cluster.url}/{request.node.name.replace('_', '-')[:60]}"


def big_state(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {name: torch.randn(5 * MIB // 4) for name in ("a", "b", "c", "d")}


def zeros(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in state.items()}


def test_ranks_save_and_others_load(torch_cluster: LocalCluster, tmp_path: Path) -> None:
    """4 ranks save under FSDP2, DDP and none; 2 load that and save; 3 load what those saved."""
    told = run_ranks(4, torch_models.four_ranks, tmp_path, torch_cluster.url)
    first = told[0]["sharded"]
    for facts in told:
        assert facts == {"sharded": first, "again": (first, 3), "plain": True, "async": True, "warm": True}
    told = run_ranks(2, torch_models.two_ranks, tmp_path, torch_cluster.url)
    second = told[0]["saved"]
    assert second != first
    for facts in told:
        assert facts.pop("saved") == second
        assert facts.pop("four to two") == (first, 3)
        assert facts == {"ddp": True, "S(0)": True, "S(1)": True, "failed": True, "again": True}
    told = run_ranks(3, torch_models.three_ranks, tmp_path, torch_cluster.url, SDRS_ATTEMPT="run:9")
    assert told == [{"two to three": (second, 3)}] * 3

    with torch_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("plain")
        # Each rank's shard, and the metadata's; what all ranks have alike is saved once.
        (found,) = checkpoints.list()
        assert found.world_size == 5
        saved_bytes = sum(t.nbytes for t in torch_models.plain_state(1)["weights"].values())
        assert saved_bytes < found.size_bytes < 1.2 * saved_bytes
        assert sum(shard.size_bytes > MIB for shard in checkpoints.shards(1)) > 1
        # Without a launcher all ranks go by the coordinator's word: one attempt for a start of the job.
        assert [(c.step, c.attempt) for c in cluster.checkpoints("cached").list()] == [(2, 1), (1, 1)]
        assert [(c.step, c.attempt) for c in cluster.checkpoints("sharded").list()] == [(2, 2), (1, 1)]
        cached = torch_models.blank(torch_models.plain_state(2))
        dcp.load(cached, storage_reader=StorageReader(f"{torch_cluster.url}/cached/2"))
        assert torch_models.equal(cached, torch_models.plain_state(2))


def test_a_rank_killed_in_mid_save_leaves_nothing_visible(torch_cluster: LocalCluster, tmp_path: Path) -> None:
    told = run_ranks(2, torch_models.die_in_mid_save, tmp_path, torch_cluster.url, may_die=(1,))
    assert told[0] not in (None, "saved")
    with torch_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("killed")
        assert checkpoints.list() == []
        assert checkpoints.latest() is None
        # In mid-save: one rank's shard was in, and nobody will ever complete it.
        assert [(str(c.state), c.world_size) for c in checkpoints.list(all_states=True)] == [("pending", 3)]
        with pytest.raises(CheckpointException, match="killed"):
            dcp.load({"w-0": torch.zeros(1)}, storage_reader=StorageReader(f"{torch_cluster.url}/killed/1"))
        # The next start of the job saves the step, whole.
        dcp.save({"w": torch.ones(3)}, storage_writer=StorageWriter(f"{torch_cluster.url}/killed/1"))
        assert [(c.step, c.attempt, c.world_size) for c in checkpoints.list()] == [(1, 2, 2)]


def test_a_part_is_loaded_by_reading_that_part(job: str) -> None:
    state = big_state()
    dcp.save(state, storage_writer=StorageWriter(f"{job}/1"))
    part = {"c": torch.zeros(5 * MIB // 4)}
    reader = StorageReader(f"{job}/1")
    dcp.load(part, storage_reader=reader)
    assert torch.equal(part["c"], state["c"])
    # 5 MiB lie across 6 blocks at most; the metadata is a small shard of its own.
    assert 5 * MIB < reader.read_bytes < 6 * MIB + 64 * 1024

    class Middle(DefaultLoadPlanner):
        """Wants some elements of what is a larger tensor in the checkpoint."""

        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            (item,) = plan.items
            narrow = {"storage_offsets": torch.Size([MIB]), "lengths": torch.Size([10])}
            return dcp.planner.LoadPlan(
                [dcp.planner.ReadItem(**{**vars(item), **narrow, "dest_offsets": torch.Size([3])})]
            )

    reader = StorageReader(f"{job}/1")
    target = {"b": torch.zeros(5 * MIB // 4)}
    dcp.load(target, storage_reader=reader, planner=Middle())
    assert torch.equal(target["b"][3:13], state["b"][MIB : MIB + 10])
    assert target["b"].count_nonzero() == 10
    assert reader.read_bytes < MIB + 64 * 1024


def test_a_flipped_byte_costs_a_copy_and_in_both_is_an_error(torch_cluster: LocalCluster, job: str) -> None:
    state = big_state(1)
    for step in (1, 2):  # of each step so many copies are bad
        dcp.save(state, storage_writer=StorageWriter(f"{job}/{step}", pool="mirrored", wait="L2"))
        with torch_cluster.connect() as cluster:
            checkpoints = cluster.checkpoints(job.rpartition("/")[2])
            assert str(checkpoints.get(step).level) == "L2"
            blob = max(checkpoints.shards(step)[0].blobs, key=lambda blob: blob.size_bytes)
        copies = [path for path in torch_cluster.fragments() if blob.id in path.name]
        assert len(copies) == 2
        for copy in copies[:step]:
            flip_bit(copy, 4096 + 3 * MIB)
    loaded = zeros(state)
    for _ in range(3):  # whichever copy is asked first
        dcp.load(loaded, storage_reader=StorageReader(f"{job}/1"))
        assert torch_models.equal(loaded, state)
    with pytest.raises(CheckpointException, match="is damaged: block 3 does not match its checksum"):
        dcp.load(loaded, storage_reader=StorageReader(f"{job}/2"))


class Harmful:
    def __reduce__(self) -> Any:
        return (print, ("this must not run",))


def test_objects_that_could_run_code_are_not_loaded(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    dcp.save({"good": {"lr": 0.1, "names": ["x"]}, "bad": Harmful()}, storage_writer=StorageWriter(f"{job}/1"))
    with pytest.raises(CheckpointException, match="bad: this object is not among those that torch loads safely"):
        dcp.load({"bad": None}, storage_reader=StorageReader(f"{job}/1"))
    assert capsys.readouterr().out == ""
    good = {"good": {"lr": 0.0, "names": [""]}}
    dcp.load(good, storage_reader=StorageReader(f"{job}/1"))
    assert good == {"good": {"lr": 0.1, "names": ["x"]}}
    dcp.load({"bad": 1}, storage_reader=StorageReader(f"{job}/1", allow_pickle=True))
    assert "must not run" in capsys.readouterr().out


def test_a_step_is_saved_once_and_shards_are_states_like_any_other(torch_cluster: LocalCluster, job: str) -> None:
    state = {"model": {"w": torch.arange(6.0)}, "epoch": 2}
    for _ in range(2):  # a repeat of the same content is the same checkpoint
        dcp.save(state, storage_writer=StorageWriter(f"{job}/1"))
    with pytest.raises(CheckpointException, match="already saved by this attempt with other content"):
        dcp.save({"model": {"w": torch.zeros(6)}, "epoch": 2}, storage_writer=StorageWriter(f"{job}/1"))
    with torch_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints(job.rpartition("/")[2])
        assert torch.equal(checkpoints.restore(1)["model.w"], torch.arange(6.0))
        assert checkpoints.restore(1, rank=1)["format"] == "torch.distributed.checkpoint"
        # A process that saves by both ways is one attempt.
        checkpoints.save(2, {"x": 1}).wait()
        dcp.save(state, storage_writer=StorageWriter(f"{job}/3"))
        with pytest.raises(CheckpointException, match=r"was not saved by torch.distributed.checkpoint"):
            dcp.load(state, storage_reader=StorageReader(f"{job}/2"))


def test_a_planner_that_makes_other_tensors_is_served_one_by_one(job: str) -> None:
    class Halving(DefaultSavePlanner):
        def transform_object(self, write_item: Any, object: Any) -> Any:
            found = super().transform_object(write_item, object)
            return found.to(torch.bfloat16) if isinstance(found, torch.Tensor) else found

    dcp.save({"w": torch.arange(100.0)}, storage_writer=StorageWriter(f"{job}/1"), planner=Halving())
    loaded = {"w": torch.zeros(100)}
    dcp.load(loaded, storage_reader=StorageReader(f"{job}/1"))
    assert torch.equal(loaded["w"], torch.arange(100.0).to(torch.bfloat16).float())


def test_the_cluster_may_come_from_the_environment(
    torch_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SDRS_URL", torch_cluster.url)
    dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter("sdrs:///from-environment/7"))
    loaded = {"w": torch.zeros(2)}
    dcp.load(loaded, checkpoint_id="sdrs:///from-environment/7", storage_reader=StorageReader("sdrs:///other/1"))
    assert bool(loaded["w"].all())


def test_what_cannot_be_done_is_refused(torch_cluster: LocalCluster, job: str) -> None:
    with pytest.raises(errors.UnsupportedError, match="use_collectives"):
        dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter(f"{job}/1"), use_collectives=False)
    with pytest.raises(CheckpointException, match="promises L1, so L3 is never reached"):
        dcp.save({"w": torch.ones(2)}, storage_writer=StorageWriter(f"{job}/1", wait="L3"))
    with torch_cluster.connect() as cluster:
        assert cluster.checkpoints(job.rpartition("/")[2]).list(all_states=True) == []
    for url in ("sdrs://127.0.0.1:7070/job", "sdrs://127.0.0.1:7070/job/x", "file:///job/1", "sdrs://bad host/job/1"):
        with pytest.raises(sdrs.errors.InvalidArgumentError):
            StorageWriter(url)
        assert not StorageReader.validate_checkpoint_id(url)
