"""The catalog as a file: what an export writes, an import reads, and nodes keep for the day it is lost (P18, P19).

::

    {"format": "sdrs-catalog-1", "cluster_id": ..., "incarnation": ..., "term": ..., "revision": ..., "sealed": ...}
    {"key": "job/llm-7b", "value": "..."}      a record as it is in the store, in the order of keys
    {"key": "save/...", "value": null}         changed while the file was written: later lines hold, null is deleted
    {"end": true, "record_count": ..., "revision": ..., "hash": ...}

One JSON object a line; the hash (xxh3) goes over all lines before the last and over its numbers. Both directions work
on pieces of any size, so that memory grows neither with the catalog nor with a hostile file (I10).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from sdrs_core.errors import CorruptDataError, UnsupportedError
from sdrs_core.ids import ClusterId
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import ELECTION_PREFIX

FORMAT = "sdrs-catalog-1"
CHUNK_BYTES = 1 << 20
# A value has at most 1.5 MiB (P3), which escapes in JSON may more than double.
MAX_LINE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """Whose catalog it is. ``revision`` is where the reading began; the last line tells what it is up to date with.

    ``sealed``: nothing changed there any more, and the file is of the next incarnation (P18). Any other is a snapshot.
    """

    cluster_id: ClusterId
    incarnation: int
    term: int
    revision: int
    created_unix_ms: int
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """What is known of a file once all of it was read and its hash matched."""

    header: Header
    record_count: int
    revision: int


# None: it was deleted while the file was written.
Record = tuple[str, bytes | None]


_NOT_CONTENT = {keys.SEAL, keys.REPLACING, keys.BOOKMARK}


def is_content(key: str) -> bool:
    """Whether a record belongs to the catalog; the others belong to the store that it happens to be in."""
    # Terms are those of one incarnation, and a copy goes on in another.
    return not key.startswith((ELECTION_PREFIX, keys.TERMS)) and key not in _NOT_CONTENT


class Encoder:
    """Makes the lines, in this order: ``header``, ``record`` for each, ``end``."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._record_count = 0

    def header(self, header: Header) -> bytes:
        return self._line({"format": FORMAT, **asdict(header)})

    def record(self, key: str, value: bytes | None) -> bytes:
        self._record_count += 1
        return self._line({"key": key, "value": None if value is None else value.decode()})

    def end(self, revision: int) -> bytes:
        return _dump(
            {
                "end": True,
                "record_count": self._record_count,
                "revision": revision,
                "hash": _sealed(self._hash, self._record_count, revision),
            }
        )

    def _line(self, content: dict[str, Any]) -> bytes:
        line = _dump(content)
        self._hash.update(line)
        return line


def _sealed(lines: xxhash.xxh3_128, record_count: int, revision: int) -> str:
    whole = lines.copy()
    whole.update(b"%d %d" % (record_count, revision))
    return whole.hexdigest()


def _dump(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Decoder:
    """Takes the bytes of a file in pieces. Nothing that ``feed`` gives may be acted on before ``finish`` returned."""

    def __init__(self) -> None:
        self._rest = b""
        self._hash = xxhash.xxh3_128()
        self._record_count = 0
        self._end: dict[str, Any] | None = None
        self.header: Header | None = None

    def feed(self, piece: bytes) -> Iterator[Record]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise CorruptDataError(f"this is not an exported catalog: a line has more than {MAX_LINE_BYTES} bytes")
        for line in lines:
            yield from self._take(line + b"\n")

    def finish(self) -> Summary:
        if self.header is None or self._end is None or self._rest:
            raise CorruptDataError("the exported catalog is torn: its last line is missing; export it again")
        count, revision = _number(self._end, "record_count"), _number(self._end, "revision")
        if count != self._record_count or self._end.get("hash") != _sealed(self._hash, count, revision):
            raise CorruptDataError("the exported catalog does not match its hash: it was damaged; export it again")
        return Summary(self.header, count, revision)

    def _take(self, line: bytes) -> Iterator[Record]:
        content = _parse(line)
        if self._end is not None:
            raise CorruptDataError("the exported catalog goes on after its last line: it was damaged; export it again")
        if "end" in content:
            self._end = content
            return
        self._hash.update(line)
        if self.header is None:
            self.header = _header_from(content)
            return
        self._record_count += 1
        key, value = content.get("key"), content.get("value")
        if not isinstance(key, str) or not isinstance(value, str | None):
            raise CorruptDataError(f"the exported catalog has a line that is no record: {line[:80]!r}")
        yield key, None if value is None else value.encode()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(f"this is not an exported catalog, or it is damaged: {line[:80]!r}") from error
    if not isinstance(content, dict):
        raise CorruptDataError(f"this is not an exported catalog: {line[:80]!r}")
    return content


def _header_from(content: dict[str, Any]) -> Header:
    found = content.pop("format", None)
    if found != FORMAT:
        if isinstance(found, str) and found.startswith("sdrs-catalog-"):
            raise UnsupportedError(f"the exported catalog has format {found}, this program reads {FORMAT}: upgrade it")
        raise CorruptDataError("this is not an exported catalog: its first line does not say so")
    cluster_id = content.get("cluster_id")
    if not isinstance(cluster_id, str) or not cluster_id:
        raise CorruptDataError("the exported catalog does not say whose it is")
    incarnation, term, revision, created_unix_ms = (
        _number(content, name) for name in ("incarnation", "term", "revision", "created_unix_ms")
    )
    is_sealed = content.get("sealed") is True
    return Header(ClusterId(cluster_id), incarnation, term, revision, created_unix_ms, is_sealed)


def _number(content: dict[str, Any], name: str) -> int:
    value = content.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CorruptDataError(f"the exported catalog has no number for {name}")
    return value
