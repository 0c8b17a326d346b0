"""The recipes of docs/fragment-format.md do what they say, on files as nodes write them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from sdrs_core.codes import Code
from sdrs_core.ids import BlobId, ClusterId, DiskId, JobName, NodeId, SaveId
from sdrs_core.zstd import Kept, PackedBlob, pack
from sdrs_storaged.store.fragment import FragmentMeta, encode_coded_footer, encode_footer, encode_header
from tests.support.coded import fragments_of
from tests.support.stores import table_of

PAGE = Path(__file__).parents[2] / "docs" / "fragment-format.md"
MIB = 1 << 20
CODE = Code(4, 2)


def recipe(word: str) -> str:
    [found] = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if word in code]
    return str(found)


def blob_of(size_bytes: int) -> tuple[dict[str, Any], bytes]:
    tensors = {"weights": np.random.default_rng(size_bytes).integers(0, 256, size_bytes, dtype=np.uint8)}
    return tensors, safetensors.numpy.save(tensors)


def header_of(index: int = 0, **facts: Any) -> bytes:
    meta = FragmentMeta(
        blob_id=BlobId("b" * 32),
        save_id=SaveId("s" * 32),
        job=JobName("llm"),
        step=1,
        attempt=1,
        rank=0,
        ordinal=0,
        fragment_index=index,
        cluster_id=ClusterId("c"),
        node_id=NodeId("n"),
        disk_id=DiskId("d"),
        created_unix_seconds=1.0,
        **facts,
    )
    return encode_header(meta)


def test_a_whole_copy_is_read_by_hand(tmp_path: Path) -> None:
    tensors, data = blob_of(3 * MIB + 5)
    header = header_of()
    (tmp_path / "copy").write_bytes(header + data + encode_footer(header, len(data), table_of(data)))
    names: dict[str, Any] = {"path": tmp_path / "copy"}
    exec(recipe("len(raw) - 48"), names)
    assert (names["tensors"]["weights"] == tensors["weights"]).all()


@pytest.mark.parametrize("size_bytes", [4 * MIB, 5 * MIB + 1, 9 * MIB + 12_345, 12 * MIB - 300])
@pytest.mark.parametrize("picked", [(0, 1, 2, 3), (2, 3, 4, 5), (5, 0, 3, 4)])
def test_a_coded_blob_is_read_by_hand_from_any_k_fragments(
    tmp_path: Path, size_bytes: int, picked: tuple[int, ...]
) -> None:
    tensors, data = blob_of(size_bytes)
    for index, fragment in enumerate(fragments_of(data, CODE)):
        header = header_of(index, code=str(CODE), source_size_bytes=len(data))
        footer = encode_coded_footer(header, len(fragment), table_of(fragment), len(data), table_of(data))
        (tmp_path / str(index)).write_bytes(header + fragment + footer)
    names: dict[str, Any] = {"paths": [tmp_path / str(index) for index in picked]}
    exec(recipe("zfec"), names)
    assert names["blob"] == data
    assert (names["tensors"]["weights"] == tensors["weights"]).all()


@pytest.mark.parametrize("more", [b"end" * MIB, np.arange(MIB, dtype=np.float32).tobytes() + b"odd"])
def test_a_compressed_blob_is_read_by_hand(more: bytes) -> None:
    data = bytes(MIB) + os.urandom(MIB) + more

    def blocks() -> Iterator[memoryview]:
        yield from (memoryview(data)[start : start + MIB] for start in range(0, len(data), MIB))

    packed = pack(len(data), blocks, blocks(), Kept(), lambda: None)
    assert isinstance(packed, PackedBlob)
    stored = b"".join(map(bytes, packed.segments()))
    header = header_of(packing=str(packed.packing))
    names: dict[str, Any] = {"raw": header + stored + b"footer", "size": len(stored)}
    exec(recipe("zstandard.decompress"), names)
    assert names["plain"] == data
