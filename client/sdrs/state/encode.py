"""A state becomes blobs."""

from __future__ import annotations

from sdrs.memory import uncollected
from sdrs.state import torch_sources
from sdrs.state.arrays import records_to_json
from sdrs.state.blobs import EncodedState, index_tensor, make_blob
from sdrs.state.container import TREE_TENSOR, VERSION, to_json
from sdrs.state.flatten import FlatState, flatten
from sdrs.state.plan import plan


def encode(state: object) -> EncodedState:
    """Describe ``state`` as blobs; the same state gives the same bytes.

    The arrays are read when the segments are, so they must not change before then. Nothing of their size is allocated:
    contiguous ones are handed out as they lie, others are copied a few MiB at a time.
    """
    with uncollected():
        return encode_flat(flatten(state))


def encode_flat(flat: FlatState) -> EncodedState:
    packs = plan([array.source.size_bytes for array in flat.arrays])
    blob_of = [0] * len(flat.arrays)
    for blob, pack in enumerate(packs):
        for position in pack:
            blob_of[position] = blob
    records = records_to_json(blob_of, flat.names, [array.type for array in flat.arrays])
    index = b'{"version":%d,"blobs":%d,"arrays":%b,"tree":%b}' % (VERSION, len(packs), records, to_json(flat.tree))
    tensors = [[flat.arrays[position].stored(flat.names[position]) for position in pack] for pack in packs]
    tensors[0].append(index_tensor(TREE_TENSOR, index))
    return EncodedState(tuple(make_blob(blob, torch_sources.join_small) for blob in tensors))
