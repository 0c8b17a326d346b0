"""The fragment file: one header page, the payload, a footer with its checksums.

::

    0          magic, version, canonical JSON of FragmentMeta, zeros, xxh3 of the page before it
    4096       the payload, contiguous and page-aligned, so that sendfile and O_DIRECT work
    + payload  one 16-byte digest for each block
               payload size, blob hash, xxh3 over the header's checksum and the footer so far, magic

A file says by itself what it is, so that a lost catalog can be rebuilt from fragments (P19). The footer's checksum
covers the header's, so that no file can be put together from parts of two. A mirror's payload is the source's plain
blocks: its own table and the source's (P9) are the same, and stored once. A fragment of a code (version 2) has two more
fields in its footer: the source's table after its own, and the source's size after the payload's; then its trailer ends
on another magic.
"""

from __future__ import annotations

import errno
import json
import os
import struct
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from sdrs_core import checksums
from sdrs_core.checksums import DIGEST_BYTES
from sdrs_core.codes import MIRROR, parse_code
from sdrs_core.errors import CorruptDataError, InvalidArgumentError, UnsupportedError
from sdrs_core.ids import BlobId, ClusterId, DiskId, JobName, NodeId, SaveId
from sdrs_proto.channel import PAYLOAD_OFFSET

PAGE_BYTES = 4096
VERSION = 1
CODED_VERSION = 2
# What a medium says about bytes that are lost, and a file system about a name under which no file can be read (a
# folder, a loop of links); any other errno (too many open files, say) tells nothing about them.
UNREADABLE_ERRNOS = {
    *(errno.EIO, errno.ENODATA, errno.EUCLEAN, errno.EBADMSG),
    *(errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESPIPE),
}
# A pipe in the place of a fragment must not have its reader wait for a writer; for files it means nothing.
OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK

_HEADER_MAGIC = b"SDRSfrag"
_FOOTER_MAGIC = b"SDRSfoot"
_CODED_FOOTER_MAGIC = b"SDRScode"
_PREFIX = struct.Struct("<8sII")  # magic, version, bytes of JSON
_TRAILER = struct.Struct("<Q16s16s8s")  # payload size, blob hash, footer checksum, magic
_CODED_TRAILER = struct.Struct("<QQ16s16s16s8s")  # payload and blob size, fragment and blob hash, checksum, magic
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
    # Of a fragment of a code: the size of the blob. A whole copy has it as its own.
    source_size_bytes: int = 0
    # Of a mirror in another pool, which ``pool`` names: the checkpoint's own pool.
    save_pool: str = ""
    # How the blob is packed, as on its record; it is not in the headers of the others, which are what they were.
    packing: str = ""

    @property
    def is_coded(self) -> bool:
        return self.code != MIRROR

    @property
    def key(self) -> FragmentKey:
        return FragmentKey(self.blob_id, self.fragment_index)

    def values(self) -> dict[str, Any]:
        """Of its fields by name. Not ``asdict``: nothing in it need be copied, and that cost more than all the rest."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


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
    fragment_hash: str
    created_unix_seconds: float
    code: str
    # Of the blob that it is a fragment of; of a whole copy the same as the two above.
    source_size_bytes: int
    source_hash: str

    @property
    def key(self) -> FragmentKey:
        return FragmentKey(self.blob_id, self.fragment_index)


@dataclass(frozen=True, slots=True)
class FragmentContents:
    """What header and footer of one file say, once their checksums matched."""

    meta: FragmentMeta
    size_bytes: int
    fragment_hash: str
    table: bytes
    source_size_bytes: int
    source_hash: str
    source_table: bytes

    def stored_on(self, disk_id: DiskId) -> StoredFragment:
        meta = self.meta
        return StoredFragment(
            meta.blob_id,
            meta.fragment_index,
            meta.save_id,
            disk_id,
            self.size_bytes,
            self.fragment_hash,
            meta.created_unix_seconds,
            meta.code,
            self.source_size_bytes,
            self.source_hash,
        )


def file_bytes(size_bytes: int, source_size_bytes: int = 0) -> int:
    """The size of the file that holds a payload of ``size_bytes``; ``source_size_bytes`` for a fragment of a code."""
    tables = checksums.block_count(size_bytes) + checksums.block_count(source_size_bytes)
    trailer = _CODED_TRAILER if source_size_bytes else _TRAILER
    return PAYLOAD_OFFSET + size_bytes + tables * DIGEST_BYTES + trailer.size


def encode_header(meta: FragmentMeta) -> bytes:
    header = meta.values()
    if not meta.packing:
        del header["packing"]
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    if len(text) > _MAX_META_BYTES:
        raise InvalidArgumentError(f"the header of blob {meta.blob_id} needs {len(text)} bytes, {_MAX_META_BYTES} fit")
    version = CODED_VERSION if meta.is_coded else VERSION
    page = (_PREFIX.pack(_HEADER_MAGIC, version, len(text)) + text).ljust(PAGE_BYTES - DIGEST_BYTES, b"\0")
    return page + checksums.digest(page)


def decode_header(page: bytes) -> FragmentMeta:
    if len(page) != PAGE_BYTES or not page.startswith(_HEADER_MAGIC):
        raise CorruptDataError("it does not begin with a fragment header")
    if checksums.digest(page[:-DIGEST_BYTES]) != page[-DIGEST_BYTES:]:
        raise CorruptDataError("the header does not match its checksum")
    _, version, text_bytes = _PREFIX.unpack_from(page)
    # After the checksum: a flipped bit is damage, another version is not, and must not be quarantined.
    if version not in (VERSION, CODED_VERSION):
        raise UnsupportedError(
            f"the fragment has format version {version}, this program reads {VERSION} and {CODED_VERSION}: upgrade it"
        )
    fields = json.loads(page[_PREFIX.size : _PREFIX.size + text_bytes])
    try:
        return FragmentMeta(**fields)
    except TypeError as error:
        raise CorruptDataError(f"the header has unexpected fields: {error}") from error


def encode_footer(header: bytes, size_bytes: int, table: bytes) -> bytes:
    fragment_hash = bytes.fromhex(checksums.blob_hash(size_bytes, table))
    checksum = _checksum(header, table, struct.pack("<Q", size_bytes), fragment_hash)
    return table + _TRAILER.pack(size_bytes, fragment_hash, checksum, _FOOTER_MAGIC)


def encode_coded_footer(
    header: bytes, size_bytes: int, table: bytes, source_size_bytes: int, source_table: bytes
) -> bytes:
    fragment_hash = bytes.fromhex(checksums.blob_hash(size_bytes, table))
    source_hash = bytes.fromhex(checksums.blob_hash(source_size_bytes, source_table))
    sizes = struct.pack("<QQ", size_bytes, source_size_bytes)
    checksum = _checksum(header, table, source_table, sizes, fragment_hash, source_hash)
    trailer = _CODED_TRAILER.pack(
        size_bytes, source_size_bytes, fragment_hash, source_hash, checksum, _CODED_FOOTER_MAGIC
    )
    return table + source_table + trailer


def check_tables(meta: FragmentOrigin, size_bytes: int, table: bytes, source_table: bytes) -> None:
    """Whether a fragment of a code can be what it says: its size, and for plain blocks the checksums of their source
    (P9).
    """
    code = parse_code(meta.code)
    assert code is not None, "a whole copy has one table"
    if meta.fragment_index >= code.total:
        raise CorruptDataError(f"{code} has no fragment {meta.fragment_index}")
    if size_bytes != code.fragment_bytes(meta.source_size_bytes, meta.fragment_index):
        raise CorruptDataError(
            f"fragment {meta.fragment_index} of {code} of a blob of {meta.source_size_bytes} bytes does not have "
            f"{size_bytes}"
        )
    if len(source_table) != checksums.block_count(meta.source_size_bytes) * DIGEST_BYTES:
        raise CorruptDataError("the source's table of checksums has the wrong size")
    if meta.fragment_index < code.data and table != plain_rows(source_table, meta.fragment_index, code.data):
        raise CorruptDataError("the fragment's checksums are not those of the source")


def plain_rows(source_table: bytes, index: int, step: int) -> bytes:
    places = range(index * DIGEST_BYTES, len(source_table), step * DIGEST_BYTES)
    return b"".join(source_table[place : place + DIGEST_BYTES] for place in places)


def read_contents(fd: int) -> FragmentContents:
    """Header and footer of an open file, checked against their checksums; the payload is not read."""
    header = os.pread(fd, PAGE_BYTES, 0)
    meta = decode_header(header)
    return _read_coded(fd, header, meta) if meta.is_coded else _read_mirror(fd, header, meta)


def _read_mirror(fd: int, header: bytes, meta: FragmentMeta) -> FragmentContents:
    trailer, file_size = _read_trailer(fd, _TRAILER, _FOOTER_MAGIC)
    size_bytes, fragment_hash, checksum, _ = _TRAILER.unpack(trailer)
    _check_file_size(file_size, file_bytes(size_bytes))
    table = os.pread(fd, checksums.block_count(size_bytes) * DIGEST_BYTES, PAYLOAD_OFFSET + size_bytes)
    if _checksum(header, table, struct.pack("<Q", size_bytes), fragment_hash) != checksum:
        raise CorruptDataError("the footer does not match its checksum")
    if checksums.blob_hash(size_bytes, table) != fragment_hash.hex():
        raise CorruptDataError("the blob hash does not match the table of checksums")
    whole = fragment_hash.hex()
    return FragmentContents(meta, size_bytes, whole, table, size_bytes, whole, table)


def _read_coded(fd: int, header: bytes, meta: FragmentMeta) -> FragmentContents:
    trailer, file_size = _read_trailer(fd, _CODED_TRAILER, _CODED_FOOTER_MAGIC)
    size_bytes, source_size_bytes, fragment_hash, source_hash, checksum, _ = _CODED_TRAILER.unpack(trailer)
    _check_file_size(file_size, file_bytes(size_bytes, source_size_bytes))
    table_bytes = checksums.block_count(size_bytes) * DIGEST_BYTES
    tables = os.pread(fd, file_size - PAYLOAD_OFFSET - size_bytes - len(trailer), PAYLOAD_OFFSET + size_bytes)
    table, source_table = tables[:table_bytes], tables[table_bytes:]
    sizes = struct.pack("<QQ", size_bytes, source_size_bytes)
    if _checksum(header, table, source_table, sizes, fragment_hash, source_hash) != checksum:
        raise CorruptDataError("the footer does not match its checksum")
    if source_size_bytes != meta.source_size_bytes:
        raise CorruptDataError("header and footer tell different sizes of the blob")
    check_tables(meta, size_bytes, table, source_table)
    for what, size, rows, found in (
        ("fragment", size_bytes, table, fragment_hash),
        ("blob", source_size_bytes, source_table, source_hash),
    ):
        if checksums.blob_hash(size, rows) != found.hex():
            raise CorruptDataError(f"the {what} hash does not match the table of checksums")
    return FragmentContents(
        meta, size_bytes, fragment_hash.hex(), table, source_size_bytes, source_hash.hex(), source_table
    )


def _read_trailer(fd: int, form: struct.Struct, magic: bytes) -> tuple[bytes, int]:
    file_size = os.fstat(fd).st_size
    trailer = os.pread(fd, form.size, max(0, file_size - form.size))
    if len(trailer) != form.size or not trailer.endswith(magic):
        raise CorruptDataError("it does not end with a fragment footer")
    return trailer, file_size


def _check_file_size(found_bytes: int, told_bytes: int) -> None:
    if found_bytes != told_bytes:
        raise CorruptDataError(f"the file has {found_bytes} bytes, its footer tells {told_bytes}")


def _checksum(header: bytes, *parts: bytes) -> bytes:
    return checksums.digest(b"".join((header[-DIGEST_BYTES:], *parts)))
