"""The fragment file: one header page, the payload, a footer with its checksums.

::

    0          magic, version, canonical JSON of FragmentMeta, zeros, xxh3 of the page before it
    4096       the payload, contiguous and page-aligned, so that sendfile and O_DIRECT work
    + payload  one 16-byte digest for each block
               payload size, blob hash, xxh3 over the header's checksum and the footer so far, magic

A file says by itself what it is, so that a lost catalog can be rebuilt from fragments (P19). The footer's checksum
covers the header's, so that no file can be put together from parts of two. A mirror's payload is the source's plain
blocks: its own table and the source's (P9) are the same, and stored once.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from dataclasses import asdict, dataclass
from typing import NamedTuple

from sdrs_core import checksums
from sdrs_core.checkpoints import MIRROR
from sdrs_core.checksums import DIGEST_BYTES
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, UnsupportedError
from sdrs_core.ids import BlobId, ClusterId, DiskId, JobName, NodeId, SaveId
from sdrs_proto.channel import PAYLOAD_OFFSET

PAGE_BYTES = 4096
VERSION = 1
# What a medium says about bytes that are lost; any other errno (too many open files, say) tells nothing about them.
UNREADABLE_ERRNOS = {errno.EIO, errno.ENODATA, errno.EUCLEAN, errno.EBADMSG}

_HEADER_MAGIC = b"SDRSfrag"
_FOOTER_MAGIC = b"SDRSfoot"
_PREFIX = struct.Struct("<8sII")  # magic, version, bytes of JSON
_TRAILER = struct.Struct("<Q16s16s8s")  # payload size, blob hash, footer checksum, magic
_MAX_META_BYTES = PAGE_BYTES - _PREFIX.size - DIGEST_BYTES


class FragmentKey(NamedTuple):
    """The name of a fragment on its node; the order of listings."""

    blob_id: BlobId
    fragment_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentOrigin:
    """What the sender says about a fragment."""

    blob_id: BlobId
    save_id: SaveId
    job: JobName
    step: int
    attempt: int
    rank: int
    ordinal: int  # the blob's place in its shard
    fragment_index: int = 0
    code: str = MIRROR
    # For a catalog that has to be rebuilt (P19); 0 and "" in files of earlier versions, which did not tell.
    world_size: int = 0
    blob_count: int = 0
    kind: str = ""
    pool: str = ""

    @property
    def key(self) -> FragmentKey:
        return FragmentKey(self.blob_id, self.fragment_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentMeta(FragmentOrigin):
    """What the header says: the origin, and where and when it was stored."""

    cluster_id: ClusterId
    node_id: NodeId
    disk_id: DiskId
    created_unix_seconds: float


@dataclass(frozen=True, slots=True)
class StoredFragment:
    """A durable fragment: written, fsynced, renamed, its folder fsynced, its hash compared (I1)."""

    blob_id: BlobId
    fragment_index: int
    save_id: SaveId
    disk_id: DiskId
    size_bytes: int
    blob_hash: str
    created_unix_seconds: float

    @property
    def key(self) -> FragmentKey:
        return FragmentKey(self.blob_id, self.fragment_index)


@dataclass(frozen=True, slots=True)
class FragmentContents:
    """What header and footer of one file say, once their checksums matched."""

    meta: FragmentMeta
    size_bytes: int
    blob_hash: str
    table: bytes

    def stored_on(self, disk_id: DiskId) -> StoredFragment:
        meta = self.meta
        return StoredFragment(
            meta.blob_id,
            meta.fragment_index,
            meta.save_id,
            disk_id,
            self.size_bytes,
            self.blob_hash,
            meta.created_unix_seconds,
        )


def file_bytes(size_bytes: int) -> int:
    """The size of the file that holds a payload of ``size_bytes``."""
    return PAYLOAD_OFFSET + size_bytes + checksums.block_count(size_bytes) * DIGEST_BYTES + _TRAILER.size


def encode_header(meta: FragmentMeta) -> bytes:
    text = json.dumps(asdict(meta), sort_keys=True, separators=(",", ":")).encode()
    if len(text) > _MAX_META_BYTES:
        raise InvalidArgumentError(f"the header of blob {meta.blob_id} needs {len(text)} bytes, {_MAX_META_BYTES} fit")
    page = (_PREFIX.pack(_HEADER_MAGIC, VERSION, len(text)) + text).ljust(PAGE_BYTES - DIGEST_BYTES, b"\0")
    return page + checksums.digest(page)


def decode_header(page: bytes) -> FragmentMeta:
    if len(page) != PAGE_BYTES or not page.startswith(_HEADER_MAGIC):
        raise CorruptDataError("it does not begin with a fragment header")
    if checksums.digest(page[:-DIGEST_BYTES]) != page[-DIGEST_BYTES:]:
        raise CorruptDataError("the header does not match its checksum")
    _, version, text_bytes = _PREFIX.unpack_from(page)
    # After the checksum: a flipped bit is damage, another version is not, and must not be quarantined.
    if version != VERSION:
        raise UnsupportedError(f"the fragment has format version {version}, this program reads {VERSION}: upgrade it")
    fields = json.loads(page[_PREFIX.size : _PREFIX.size + text_bytes])
    try:
        return FragmentMeta(**fields)
    except TypeError as error:
        raise CorruptDataError(f"the header has unexpected fields: {error}") from error


def encode_footer(header: bytes, size_bytes: int, table: bytes) -> bytes:
    blob_hash = bytes.fromhex(checksums.blob_hash(size_bytes, table))
    checksum = _footer_checksum(header, table, size_bytes, blob_hash)
    return table + _TRAILER.pack(size_bytes, blob_hash, checksum, _FOOTER_MAGIC)


def read_contents(fd: int) -> FragmentContents:
    """Header and footer of an open file, checked against their checksums; the payload is not read."""
    header = os.pread(fd, PAGE_BYTES, 0)
    meta = decode_header(header)
    file_size = os.fstat(fd).st_size
    trailer = os.pread(fd, _TRAILER.size, max(0, file_size - _TRAILER.size))
    if len(trailer) != _TRAILER.size or not trailer.endswith(_FOOTER_MAGIC):
        raise CorruptDataError("it does not end with a fragment footer")
    size_bytes, blob_hash, checksum, _ = _TRAILER.unpack(trailer)
    if file_size != file_bytes(size_bytes):
        raise CorruptDataError(f"the file has {file_size} bytes, its footer tells {file_bytes(size_bytes)}")
    table = os.pread(fd, checksums.block_count(size_bytes) * DIGEST_BYTES, PAYLOAD_OFFSET + size_bytes)
    if _footer_checksum(header, table, size_bytes, blob_hash) != checksum:
        raise CorruptDataError("the footer does not match its checksum")
    if checksums.blob_hash(size_bytes, table) != blob_hash.hex():
        raise CorruptDataError("the blob hash does not match the table of checksums")
    return FragmentContents(meta, size_bytes, blob_hash.hex(), table)


def _footer_checksum(header: bytes, table: bytes, size_bytes: int, blob_hash: bytes) -> bytes:
    return checksums.digest(header[-DIGEST_BYTES:] + table + struct.pack("<Q", size_bytes) + blob_hash)
