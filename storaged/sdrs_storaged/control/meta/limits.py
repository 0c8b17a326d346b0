"""The limits of the MetaStore's contract, checked before a request is looked at (they are etcd's)."""

from __future__ import annotations

from collections.abc import Sequence

from sdrs_core.errors import InvalidArgumentError
from sdrs_storaged.control.meta.store import Compare, Delete, DeletePrefix, Op, Put, Target

MAX_OPERATIONS = 128
MAX_REQUEST_BYTES = 3 << 19
MAX_KEY_BYTES = 1024
MAX_PAGE_ENTRIES = 10_000
# More than etcd's message spends around a key and a value, so that what passes here passes there.
OPERATION_OVERHEAD_BYTES = 64


def check_key(key: str) -> int:
    """The length of ``key`` in bytes, if it may be one."""
    if not key:
        raise InvalidArgumentError("a key may not be empty")
    return _text_bytes(key, "key")


def check_prefix(prefix: str) -> None:
    _text_bytes(prefix, "prefix")


def check_candidate(candidate: str) -> None:
    if not candidate:
        raise InvalidArgumentError("a candidate needs a name")
    _text_bytes(candidate, "candidate")


def _text_bytes(text: str, what: str) -> int:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} {text[:80]!r} is not valid text: it has no form in UTF-8") from None
    if size_bytes > MAX_KEY_BYTES:
        raise InvalidArgumentError(f"{what} {text[:80]!r}... has {size_bytes} bytes: at most {MAX_KEY_BYTES} may be")
    return size_bytes


def check_page(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE_ENTRIES:
        raise InvalidArgumentError(f"a page of {limit} entries is not possible: ask for 1 to {MAX_PAGE_ENTRIES}")


def check_from_revision(revision: int) -> None:
    if revision < 1:
        raise InvalidArgumentError(f"revision {revision} does not exist: the first one is 1")


def check_txn(compare: Sequence[Compare], then: Sequence[Op]) -> None:
    for what, count in (("compares", len(compare)), ("operations", len(then))):
        if count > MAX_OPERATIONS:
            raise InvalidArgumentError(
                f"a transaction of {count} {what} is too long: at most {MAX_OPERATIONS} are allowed, split it"
            )
    size_bytes = sum(map(_compare_bytes, compare)) + sum(map(_op_bytes, then))
    if size_bytes > MAX_REQUEST_BYTES:
        raise InvalidArgumentError(
            f"a transaction of {size_bytes} bytes is too large: at most {MAX_REQUEST_BYTES} are allowed, split it"
        )
    _check_overlap(then)


def _compare_bytes(compare: Compare) -> int:
    value_bytes = 8
    if compare.target is Target.VALUE:
        value_bytes = _value_bytes(compare.key, compare.expected)
    elif not isinstance(compare.expected, int):
        raise InvalidArgumentError(f"the {compare.target.value} of key {compare.key!r} is compared with a number only")
    return check_key(compare.key) + value_bytes + OPERATION_OVERHEAD_BYTES


def _op_bytes(op: Op) -> int:
    if isinstance(op, DeletePrefix):
        # An empty prefix would delete the leader's record with everything else.
        return check_key(op.prefix) + OPERATION_OVERHEAD_BYTES
    value_bytes = _value_bytes(op.key, op.value) if isinstance(op, Put) else 0
    return check_key(op.key) + value_bytes + OPERATION_OVERHEAD_BYTES


def _value_bytes(key: str, value: object) -> int:
    if not isinstance(value, bytes):
        raise InvalidArgumentError(f"the value of key {key!r} is a {type(value).__name__}: only bytes are stored")
    return len(value)


def _check_overlap(then: Sequence[Op]) -> None:
    """Operations of one transaction have no order among themselves in etcd, so a put must stand alone on its key."""
    put_keys: set[str] = set()
    for op in then:
        if isinstance(op, Put):
            if op.key in put_keys:
                raise InvalidArgumentError(f"key {op.key!r} is put twice in one transaction")
            put_keys.add(op.key)
    for op in then:
        if isinstance(op, Delete) and op.key in put_keys:
            raise InvalidArgumentError(f"key {op.key!r} is put and deleted in one transaction")
        if isinstance(op, DeletePrefix) and any(key.startswith(op.prefix) for key in put_keys):
            raise InvalidArgumentError(f"prefix {op.prefix!r} is deleted and a key under it is put in one transaction")
