"""How a state or a folder becomes blobs, and blobs become it again.

A state is nested dicts, lists and tuples of arrays and plain values; it is written as a few safetensors files and never
as pickle, so that a blob can be opened without us and a hostile one can run nothing. No module here imports torch,
numpy or ml_dtypes before the state at hand needs it.

::

    encoded = encode(state)                    # nothing is copied yet
    for blob in encoded.blobs:                 # blob.size_bytes is known before the first byte
        for segment in blob.segments(): ...    # valid until the next one is asked for
    index = decode_index(first_blob)
    state = rebuild(index, buffers)            # buffers[i] is the whole of blob i, verified
    overlay(index, sizes, state).slots         # or: who takes the bytes of each array, of a state that is there

``encode_files``, ``decode_files_index`` and ``FileRestorer`` do the same for a folder.
"""

from sdrs.state.blobs import EncodedBlob, EncodedState
from sdrs.state.container import header_end, parse_header
from sdrs.state.decode import StateIndex, decode_index, rebuild
from sdrs.state.encode import encode, encode_flat
from sdrs.state.files import KeptBlob, encode_entries, encode_files
from sdrs.state.files_index import FileEntry, FilesIndex, decode_files_index
from sdrs.state.files_restore import FileRestorer
from sdrs.state.into import Overlay, Slot, overlay

__all__ = [
    "EncodedBlob",
    "EncodedState",
    "FileEntry",
    "FileRestorer",
    "FilesIndex",
    "KeptBlob",
    "Overlay",
    "Slot",
    "StateIndex",
    "decode_files_index",
    "decode_index",
    "encode",
    "encode_entries",
    "encode_files",
    "encode_flat",
    "header_end",
    "overlay",
    "parse_header",
    "rebuild",
]
