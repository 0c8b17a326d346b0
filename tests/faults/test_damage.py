"""Fragments flipped, truncated, deleted or swapped on disk: detected always, never wrong bytes, and named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sdrs
from sdrs import errors
from tests.support.cluster import LocalCluster
from tests.support.states import MIB, make_state, same
from tests.support.stores import flip_bit

HEADER_OFFSET, PAYLOAD_OFFSET = 40, 4096


def _flip_header(path: Path) -> None:
    flip_bit(path, HEADER_OFFSET)


def _flip_first_block(path: Path) -> None:
    flip_bit(path, PAYLOAD_OFFSET + 1000)


def _flip_last_block(path: Path) -> None:
    flip_bit(path, PAYLOAD_OFFSET + 3 * MIB - 1)


def _flip_footer(path: Path) -> None:
    flip_bit(path, -20)


def _truncate(path: Path) -> None:
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size - 100_000)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _delete(path: Path) -> None:
    path.unlink()


DAMAGES: list[Callable[[Path], None]] = [
    _flip_header,
    _flip_first_block,
    _flip_last_block,
    _flip_footer,
    _truncate,
    _empty,
    _delete,
]


def _save(cluster: LocalCluster, ckpts: sdrs.Checkpoints, step: int) -> Path:
    """Save one blob's worth; the file it became."""
    before = set(cluster.fragments())
    ckpts.save(step=step, state=make_state(step)).wait()
    (fragment,) = set(cluster.fragments()) - before
    return fragment


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_damaged_fragment_is_never_returned(shared_cluster: LocalCluster, damage: Callable[[Path], None]) -> None:
    job = f"damage{damage.__name__}"
    with shared_cluster.connect() as client:
        ckpts = client.checkpoints(job)
        _save(shared_cluster, ckpts, 1)
        damage(_save(shared_cluster, ckpts, 2))

        with pytest.raises(errors.CorruptDataError) as caught:
            ckpts.restore(step=2)
        (shard,) = ckpts.shards(2)
        for named in (job, "step 2", shard.blobs[0].id):
            assert named in str(caught.value)

        # The reader's report made the node look itself: the checkpoint is marked, and passed over from now on.
        assert ckpts.get(2).damage
        with pytest.warns(sdrs.RestoreWarning, match="step 2"):
            assert same(ckpts.restore(), make_state(1))
        assert not ckpts.verify(2).ok
        assert ckpts.verify(1).ok
        assert any(job in warning for warning in client.info().warnings)


def test_two_swapped_fragments_are_both_refused(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    with shared_cluster.connect() as client:
        ckpts = client.checkpoints("swapped")
        first, second = _save(shared_cluster, ckpts, 1), _save(shared_cluster, ckpts, 2)
        shutil.move(first, tmp_path / "kept")
        shutil.move(second, first)
        shutil.move(tmp_path / "kept", second)
        for step in (1, 2):
            with pytest.raises(errors.CorruptDataError):
                ckpts.restore(step=step)
        with pytest.raises(errors.NotRestorableError):
            ckpts.restore()


def test_damage_that_verify_finds_is_marked_without_anybody_reading(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as client:
        ckpts = client.checkpoints("verified")
        _flip_first_block(_save(shared_cluster, ckpts, 1))
        found = ckpts.verify(1)
        assert not found.ok
        assert found.problems[0].blob_id == ckpts.shards(1)[0].blobs[0].id
        assert ckpts.get(1).damage


def test_bad_fragments_are_kept_in_quarantine(shared_cluster: LocalCluster) -> None:
    with shared_cluster.connect() as client:
        ckpts = client.checkpoints("quarantined")
        fragment = _save(shared_cluster, ckpts, 1)
        _flip_first_block(fragment)
        assert not ckpts.verify(1).ok
        assert not fragment.exists()
        quarantine = fragment.parents[2] / "quarantine"
        assert any(path.name.startswith(fragment.name) for path in quarantine.iterdir())
