"""Manifests as JSON: what goes out comes back, and what was changed is noticed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.backup.manifest_json import commit_from_json, commit_to_json, shard_from_json, shard_to_json
from sdrs_core.backup.manifests import BackedUpBlob, CommitRecord, ObjectPlace, ShardManifest
from sdrs_core.checkpoints import ContentKind
from sdrs_core.errors import CorruptDataError, UnsupportedError
from sdrs_core.ids import JobName, PoolName, SaveId

RECORD = CommitRecord(
    "c1", SaveId("s1"), JobName("llm"), 900, 2, 2, PoolName("fast"), ContentKind.FILES, 100, 1, 2, 3, ("f", "g"), "key"
)

counts = st.integers(0, 2**53)
blobs = st.builds(
    BackedUpBlob,
    counts,
    counts,
    st.text(),
    st.text(),
    st.binary(),
    st.builds(ObjectPlace, st.text(), counts, st.text()),
)
shards = st.builds(
    ShardManifest,
    st.text().map(SaveId),
    counts,
    st.sampled_from(ContentKind),
    counts,
    st.text(),
    st.lists(blobs, max_size=4).map(tuple),
)


@settings(deadline=None)
@given(shards)
def test_a_shard_manifest_comes_back_as_it_was(manifest: ShardManifest) -> None:
    assert shard_from_json(shard_to_json(manifest), "here") == manifest


def test_a_commit_record_comes_back_as_it_was_however_it_is_indented() -> None:
    data = commit_to_json(RECORD)

    assert commit_from_json(data, "here") == RECORD
    assert commit_from_json(json.dumps(json.loads(data)).encode(), "here") == RECORD


@settings(deadline=None)
@given(st.data())
def test_any_changed_byte_of_a_commit_record_is_noticed_or_changes_nothing(data: st.DataObject) -> None:
    text = bytearray(commit_to_json(RECORD))
    text[data.draw(st.integers(0, len(text) - 1))] ^= data.draw(st.integers(1, 255))

    try:
        found = commit_from_json(bytes(text), "here")
    except (CorruptDataError, UnsupportedError):
        return
    assert found == RECORD


def test_a_newer_format_is_told_apart_from_damage() -> None:
    newer = {**json.loads(commit_to_json(RECORD)), "format": 2}

    with pytest.raises(UnsupportedError, match="use a newer one"):
        commit_from_json(json.dumps(newer).encode(), "here")


def test_a_record_with_a_rank_too_few_is_refused() -> None:
    with pytest.raises(CorruptDataError, match="1 shards of 2 ranks"):
        commit_from_json(commit_to_json(replace(RECORD, shards=("f",))), "here")
