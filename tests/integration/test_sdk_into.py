"""Restores into arrays that are there: filled in place, compared before anything is written."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

import sdrs
from sdrs import errors
from tests.support.cluster import LocalCluster
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit


def blank(value: Any) -> Any:
    """The same state with other contents."""
    if isinstance(value, dict):
        return type(value)((key, blank(inside)) for key, inside in value.items())
    if isinstance(value, list | tuple):
        return type(value)(map(blank, value))
    return value * 0 if isinstance(value, torch.Tensor | np.ndarray) else None


def test_arrays_are_filled_in_place_whatever_their_layout(shared_cluster: LocalCluster) -> None:
    tied = torch.arange(300_000, dtype=torch.float32)
    state: dict[str, Any] = {
        "big": torch.randn(9 * MIB // 4 + 3),
        "rows": torch.randn(2300, 1001, dtype=torch.float64),  # in many blocks, whose borders are inside of rows
        "model": OrderedDict(a=torch.nn.Parameter(torch.randn(3, 5)), tied=tied, too=tied),
        "half": torch.randn(1001).to(torch.bfloat16),
        "numpy": [np.arange(20, dtype=np.int16), np.full((5, 6), 1j)],
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(7),
        "epoch": 3,
        "name": "run",
        "raw": bytes(range(256)) * 40,
    }
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("into")
        checkpoints.save(1, state).wait()
        into = blank(state)
        into["rows"] = torch.zeros(1001, 2300, dtype=torch.float64).t()
        into["numpy"][1] = np.zeros((5, 12), complex)[:, ::2]
        into["model"]["too"] = into["model"]["tied"]
        del into["half"]
        result = checkpoints.restore(into=into)
        for path in (("big",), ("rows",), ("model", "a"), ("model", "tied"), ("numpy", 0), ("numpy", 1), ("scalar",)):
            given, found, saved = into, result, state
            for step in path:
                given, found, saved = given[step], found[step], saved[step]
            assert found is given
            assert bool((found == saved).all())
        assert result["model"]["too"] is result["model"]["tied"]
        assert torch.equal(result["half"], state["half"])
        assert (result["epoch"], result["name"], result["raw"]) == (3, "run", state["raw"])
        assert into["epoch"] is None


def test_what_does_not_fit_is_named_before_anything_is_written(shared_cluster: LocalCluster) -> None:
    state = {"a": np.ones(5), "list": [np.ones((2, 3), np.float32), 4], "t": torch.ones(2), "n": 1}
    wrong: dict[str, tuple[Any, str]] = {
        "shape": ({"a": np.zeros(6)}, r'state\["a"\]: an array of float64 \(6,\) .* needs float64 \(5,\)'),
        "dtype": ({"list": [np.zeros((2, 3)), 4]}, r'state\["list"\]\[0\]: .* needs float32'),
        "kind": ({"t": np.zeros(2)}, r'state\["t"\]: an array of numpy .* needs one of torch'),
        "meta": ({"t": torch.empty(2, device="meta")}, r'state\["t"\]: a tensor without memory'),
        "expanded": ({"t": torch.zeros(1).expand(2)}, r'state\["t"\]: an expanded tensor'),
        "length": ({"list": [None]}, r'state\["list"\]: a list of 1 .* needs a list of 2'),
        "extra": ({"more": {"x": np.zeros(2)}}, r'state\["more"\]\["x"\]: .* the checkpoint does not have it'),
        "plain": ({"n": np.zeros(2)}, r'state\["n"\]: .* it is no array in the checkpoint'),
        "list for a dict": ([], "state: a list .* needs a dict"),
    }
    frozen = np.zeros(5)
    frozen.flags.writeable = False
    wrong["read-only"] = ({"a": frozen}, r'state\["a"\]: a read-only array')
    both = np.zeros(5)
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("misfits")
        checkpoints.save(1, state).wait()
        for into, message in wrong.values():
            witness = np.zeros(5)
            given = {"a": witness, **into} if isinstance(into, dict) else into
            with pytest.raises(errors.InvalidArgumentError, match=message):
                checkpoints.restore(into=given)
            assert not witness.any()
        checkpoints.save(2, {"x": np.ones(5), "y": np.zeros(5)}).wait()
        with pytest.raises(errors.InvalidArgumentError, match=r'the same array as for state\["x"\]'):
            checkpoints.restore(step=2, into={"x": both, "y": both})


def test_an_older_generation_fills_what_a_damaged_one_began(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("into-older")
        checkpoints.save(1, make_state(1, 20 * MIB)).wait()
        before = set(shared_cluster.fragments())
        checkpoints.save(2, make_state(2, 20 * MIB)).wait()
        large = max(set(shared_cluster.fragments()) - before, key=lambda path: path.stat().st_size)
        flip_bit(large, large.stat().st_size // 2)
        into = blank(make_state(1, 20 * MIB))
        with pytest.warns(sdrs.RestoreWarning, match="step 2"):
            assert same(checkpoints.restore(into=into), make_state(1, 20 * MIB))
        with pytest.raises(errors.CorruptDataError) as caught:
            checkpoints.restore(step=2, into=into)
        assert any("mixture" in note for note in caught.value.__notes__)


def test_many_small_arrays_whose_header_outgrows_a_block(shared_cluster: LocalCluster) -> None:
    state = {f"{'x' * 100}{number}": np.full(300, number, np.float64) for number in range(14_000)}
    with shared_cluster.connect() as cluster:
        checkpoints = cluster.checkpoints("many")
        checkpoints.save(1, state).wait()
        assert len(checkpoints.shards(1)[0].blobs) > 1
        into = blank(state)
        checkpoints.restore(into=into)
        assert all(same(into[name], state[name]) for name in state)


def test_no_second_copy_of_the_state_is_made(shared_cluster: LocalCluster) -> None:
    """The peak of a process that restores 200 MiB into 200 MiB stays far below 400."""
    size = 200 * MIB
    with shared_cluster.connect() as cluster:
        cluster.checkpoints("lean").save(
            1, {"w": np.ones(size // 2, np.uint8), "v": np.ones(size // 2, np.uint8)}
        ).wait()
    program = f"""
import numpy as np, sdrs
def peak_kib():  # not ru_maxrss, in which a new program begins with its parent's
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
into = {{"w": np.full({size // 2}, 7, np.uint8), "v": np.full({size // 2}, 7, np.uint8)}}
with sdrs.connect({shared_cluster.url!r}) as cluster:
    checkpoints = cluster.checkpoints("lean")
    checkpoints.get(1)
    before = peak_kib()
    checkpoints.restore(into=into)
    print(peak_kib() - before)
assert into["w"].all() and into["w"].max() == 1 and into["v"].max() == 1
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) * 1024 < size // 4


def test_the_async_twin_restores_into_too(shared_cluster: LocalCluster) -> None:
    async def restore() -> None:
        async with sdrs.aio.connect(shared_cluster.url) as cluster:
            checkpoints = cluster.checkpoints("into-async")
            await (await checkpoints.save(1, make_state(5))).wait()
            into = blank(make_state(5))
            assert same(await checkpoints.restore(into=into), make_state(5))

    asyncio.run(restore())
