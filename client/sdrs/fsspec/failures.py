"""Our errors as the ones that users of files expect. Those that are out of reach or late are OSErrors already."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from sdrs_core.errors import (
    AlreadyExistsError,
    FullError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    SdrsError,
)

_NUMBERS: tuple[tuple[type[SdrsError], int], ...] = (
    (NotFoundError, errno.ENOENT),
    (AlreadyExistsError, errno.EEXIST),
    (PermissionDeniedError, errno.EACCES),
    (RefusedError, errno.EPERM),
    (FullError, errno.ENOSPC),
    (InvalidArgumentError, errno.EINVAL),
    (SdrsError, errno.EIO),
)


@contextmanager
def os_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError:
        raise
    except SdrsError as error:
        # Python makes the subclass of the number: FileNotFoundError of ENOENT.
        number = next(number for kind, number in _NUMBERS if isinstance(error, kind))
        raise OSError(number, str(error), path) from error
