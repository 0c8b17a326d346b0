"""ISA-L through ctypes: a matrix over GF(2^8) times blocks of bytes, about as fast as memory delivers them.

It knows nothing of a code: ``erasure`` brings the matrix. ISA-L's field is that of zfec (polynomial 0x11d).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

SYSTEM_LIBRARY = "libisal.so.2"
_TABLE_BYTES = 32  # for each coefficient
_MAX_CALL_BYTES = 1 << 30  # ISA-L counts in an int
_PYBUF_SIMPLE, _PYBUF_WRITABLE = 0, 1


def candidates() -> Iterator[str]:
    """Where ISA-L may be, best first: the system's, kept up to date with it, then the one inside pyeclib's wheel."""
    yield SYSTEM_LIBRARY
    spec = find_spec("pyeclib")  # finds without importing
    if spec is not None and spec.origin is not None:
        yield from map(str, sorted((Path(spec.origin).parents[1] / "pyeclib.libs").glob("libisal*.so*")))


class Isal:
    """The library. OSError if it cannot be loaded, AttributeError if it lacks a function that we need."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)  # which releases the GIL for as long as one of its functions runs
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.init_tables = library.ec_init_tables
        self.init_tables.argtypes, self.init_tables.restype = [number, number, pointer, pointer], None
        self.encode_data = library.ec_encode_data
        self.encode_data.argtypes = [number, number, number, pointer, pointer, pointer]
        self.encode_data.restype = None
        self._invert_matrix = library.gf_invert_matrix
        self._invert_matrix.argtypes, self._invert_matrix.restype = [pointer, pointer, number], number
        self.path = _path_of(self.encode_data) or path
        self.version = _version_of(library)

    def __str__(self) -> str:
        return f"ISA-L {self.version} ({self.path})" if self.version else f"ISA-L ({self.path})"

    def matrix(self, rows: Sequence[bytes]) -> Matrix:
        return Matrix(self, rows)

    def invert(self, rows: Sequence[bytes]) -> list[bytes]:
        """The inverse of a square matrix."""
        size = len(rows)
        given = ctypes.create_string_buffer(b"".join(rows), size * size)  # overwritten by the call
        inverse = ctypes.create_string_buffer(size * size)
        if self._invert_matrix(given, inverse, size) != 0:
            raise ArithmeticError(f"a matrix of {size} rows has no inverse")
        return [inverse.raw[start : start + size] for start in range(0, size * size, size)]


class Matrix:
    """Coefficients, expanded into the tables that ISA-L multiplies with. It never changes, so threads may share it."""

    def __init__(self, isal: Isal, rows: Sequence[bytes]) -> None:
        self._encode_data = isal.encode_data
        self._row_count, self._column_count = len(rows), len(rows[0])
        self._tables = ctypes.create_string_buffer(self._row_count * self._column_count * _TABLE_BYTES)
        isal.init_tables(self._column_count, self._row_count, b"".join(rows), self._tables)

    def multiply(self, sources: Sequence[memoryview], products: Sequence[memoryview]) -> None:
        """Writes this matrix times ``sources`` (one for each column) into ``products`` (one for each row).

        All are equally long and contiguous. One call for whole blocks: pieces that fit the cache gain nothing, since
        ISA-L goes through all blocks at once, and each return would have to wait for the GIL.
        """
        length = sources[0].nbytes
        with _addresses(sources, _PYBUF_SIMPLE) as inputs, _addresses(products, _PYBUF_WRITABLE) as outputs:
            for start in range(0, length, _MAX_CALL_BYTES):
                self._encode_data(
                    min(length - start, _MAX_CALL_BYTES),
                    self._column_count,
                    self._row_count,
                    self._tables,
                    _pointers(inputs, start),
                    _pointers(outputs, start),
                )


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer. ctypes' own from_buffer refuses memory that is read-only."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


# Not ctypes.pythonapi: the types set on its functions are seen by everybody in the process.
_python = ctypes.PyDLL(None)
_get_buffer, _release_buffer = _python.PyObject_GetBuffer, _python.PyBuffer_Release
_get_buffer.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_release_buffer.argtypes, _release_buffer.restype = [ctypes.c_void_p], None


@contextmanager
def _addresses(blocks: Sequence[memoryview], flags: int) -> Iterator[list[int]]:
    """Where the blocks' bytes are. Meanwhile nobody can unmap or resize them, although the GIL is released."""
    buffers = (_PyBuffer * len(blocks))()
    held: list[_PyBuffer] = []
    try:
        for block, buffer in zip(blocks, buffers, strict=True):
            _get_buffer(block, ctypes.byref(buffer), flags)
            held.append(buffer)
        yield [buffer.buf for buffer in held]
    finally:
        for buffer in held:
            _release_buffer(ctypes.byref(buffer))


def _pointers(addresses: list[int], offset: int) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(addresses))(*(address + offset for address in addresses))


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file_name", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol", ctypes.c_void_p),
    )


def _path_of(function: ctypes._NamedFuncPointer) -> str:
    """The file that a function was loaded from: the system's library is found by its name only."""
    found = _DlInfo()
    if not ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found)):
        return ""
    return str(Path(os.fsdecode(found.file_name)).resolve())


def _version_of(library: ctypes.CDLL) -> str:
    try:
        get_version = library.isal_get_version_str
    except AttributeError:  # before 2.31
        return ""
    get_version.restype = ctypes.c_char_p
    return str(get_version().decode())
