"""The catalog as a file: whole or refused."""

from __future__ import annotations

import pytest

from sdrs_core.errors import CorruptDataError, UnsupportedError
from sdrs_core.ids import ClusterId
from sdrs_storaged.control import archive
from sdrs_storaged.control.archive import Decoder, Encoder, Header, Record, Summary

HEADER = Header(ClusterId("c1"), 2, 3, 40, 1_700_000_000_000, sealed=True)
RECORDS: list[Record] = [("cluster", b'{"id":"c1"}'), ("job/é", b'"\\u00e9 \xc3\xa9\\n"'), ("job/gone", None)]


def file() -> bytes:
    encoder = Encoder()
    lines = [encoder.header(HEADER), *(encoder.record(*record) for record in RECORDS)]
    return b"".join([*lines, encoder.end(45)])


def read(content: bytes, piece_bytes: int = 7) -> tuple[list[Record], Summary]:
    decoder = Decoder()
    records: list[Record] = []
    for start in range(0, len(content), piece_bytes):
        records += decoder.feed(content[start : start + piece_bytes])
    return records, decoder.finish()


@pytest.mark.parametrize("piece_bytes", [1, 7, 100_000])
def test_what_was_written_is_read_whatever_the_pieces(piece_bytes: int) -> None:
    assert read(file(), piece_bytes) == (RECORDS, Summary(HEADER, 3, 45))


def test_a_file_that_ends_too_early_is_refused_wherever_it_ends() -> None:
    for length in range(len(file())):
        with pytest.raises(CorruptDataError):
            read(file()[:length])


def test_a_flipped_bit_is_refused_wherever_it_is() -> None:
    for position in range(len(file())):
        content = bytearray(file())
        content[position] ^= 0x01
        with pytest.raises((CorruptDataError, UnsupportedError)):
            read(bytes(content))


def test_lines_that_changed_places_or_are_missing_are_refused() -> None:
    first, one, two, *rest = file().splitlines(keepends=True)
    for lines in ([first, two, one, *rest], [first, two, *rest], [one, first, two, *rest]):
        with pytest.raises(CorruptDataError):
            read(b"".join(lines))


def test_nothing_may_follow_the_last_line() -> None:
    with pytest.raises(CorruptDataError, match="after its last line"):
        read(file() + b'{"key":"a","value":"b"}\n')


def test_a_line_without_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_LINE_BYTES", 1000)
    with pytest.raises(CorruptDataError, match="1000 bytes"):
        read(b"x" * 2000, 400)


@pytest.mark.parametrize("content", [b"", b"[]\n", b"PK\x03\x04\n", b'{"format":"other"}\n', b"[" * 100_000 + b"\n"])
def test_something_else_is_not_taken_for_a_catalog(content: bytes) -> None:
    with pytest.raises(CorruptDataError):
        read(content, 1 << 20)


def test_a_later_format_is_told_apart_from_damage() -> None:
    with pytest.raises(UnsupportedError, match="upgrade"):
        read(file().replace(b"sdrs-catalog-1", b"sdrs-catalog-9"))
