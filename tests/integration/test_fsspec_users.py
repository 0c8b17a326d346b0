"""Programs that know fsspec and nothing of us: pandas, safetensors, torch's distributed checkpoints."""

from __future__ import annotations

import fsspec
import pandas as pd
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load, save
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from tests.support.cluster import LocalCluster


def test_pandas_writes_and_reads(shared_cluster: LocalCluster) -> None:
    url = f"{shared_cluster.url}/tables/1/table.csv"
    table = pd.DataFrame({"step": [1, 2], "loss": [0.5, 0.25]})
    table.to_csv(url, index=False)
    assert pd.read_csv(url).equals(table)


def test_safetensors_are_written_and_read(shared_cluster: LocalCluster) -> None:
    url = f"{shared_cluster.url}/tensors/1/model.safetensors"
    tensors = {"w": torch.randn(300, 300, dtype=torch.bfloat16)}
    with fsspec.open(url, "wb") as file:
        file.write(save(tensors))
    with fsspec.open(url) as file:
        assert torch.equal(load(file.read())["w"], tensors["w"])


@pytest.mark.filterwarnings("ignore::UserWarning:torch", "ignore::FutureWarning:torch")
def test_dcp_saves_and_loads_with_its_own_fsspec_reader_and_writer(shared_cluster: LocalCluster) -> None:
    url = f"{shared_cluster.url}/dcp/7"
    state = {"model": torch.nn.Linear(64, 64).state_dict(), "step": 7}
    dcp.save(state, storage_writer=FsspecWriter(url, thread_count=2), no_dist=True)
    into = {"model": torch.nn.Linear(64, 64).state_dict(), "step": 0}
    dcp.load(into, storage_reader=FsspecReader(url), no_dist=True)
    assert into["step"] == 7
    assert all(torch.equal(into["model"][name], tensor) for name, tensor in state["model"].items())
    names = fsspec.filesystem("sdrs", hosts=shared_cluster.address).ls("dcp/7", detail=False)
    assert "dcp/7/.metadata" in names
    assert not [name for name in names if name.endswith(".tmp")]
