"""A state becomes blobs."""

from __future__ import annotations

from collections.abc import Sequence

from sdrs.memory import uncollected
from sdrs.state.arrays import records_to_json
from sdrs.state.blobs import BytesSource, EncodedBlob, EncodedState, blob_of
from sdrs.state.container import TREE_TENSOR, VERSION, to_json
from sdrs.state.flatten import FlatState, flatten
from sdrs.state.plan import plan
from sdrs.state.torch_sources import join_small


def encode(state: object) -> EncodedState:
    """Describe ``state`` as blobs; the same state gives the same bytes.

    The arrays are read when the segments are, so they must not change before then. Nothing of their size is allocated:
    contiguous ones are handed out as they lie, others are copied a few MiB at a time.
    """
    with uncollected():
        return encode_flat(flatten(state))


def encode_flat(flat: FlatState) -> EncodedState:
    packs = plan([kind.size_bytes for kind in flat.kinds])
    number_of = [0] * len(flat.kinds)
    for number, pack in enumerate(packs):
        for position in pack:
            number_of[position] = number
    records = records_to_json(number_of, flat.names, flat.kinds)
    index = b'{"version":%d,"blobs":%d,"arrays":%b,"tree":%b}' % (VERSION, len(packs), records, to_json(flat.tree))
    first, *others = packs
    return EncodedState((_blob(flat, first, index), *(_blob(flat, pack) for pack in others)))


def _blob(flat: FlatState, pack: Sequence[int], index: bytes | None = None) -> EncodedBlob:
    ordered = sorted(pack, key=lambda position: -flat.kinds[position].align_bytes)
    names = [flat.names[position] for position in ordered]
    kinds = [flat.kinds[position] for position in ordered]
    types = [kind.stored for kind in kinds]
    sizes_bytes = [kind.size_bytes for kind in kinds]
    sources = join_small([flat.sources[position] for position in ordered])
    if index is not None:
        names.append(TREE_TENSOR)
        types.append(("U8", (len(index),)))
        sizes_bytes.append(len(index))
        sources.append(BytesSource(index))
    return blob_of(names, types, sizes_bytes, sources)
