"""The entry point ``sdrs``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

INTERRUPTED = 130


def main() -> None:
    missing = [package for package in ("click", "rich") if find_spec(package) is None]
    if missing:
        # The SDK installs without them, into training images that have no use for a command line.
        sys.stderr.write(f"sdrs: error: the command line needs {' and '.join(missing)}: pip install 'sdrs[cli]'\n")
        sys.exit(1)
    try:
        from sdrs.cli.root import root

        root.main(prog_name="sdrs")
    except KeyboardInterrupt:
        _leave_at_once()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _leave_at_once()
        raise


def _leave_at_once() -> NoReturn:
    """After Ctrl-C the interpreter would wait for the threads of a push; what is half sent is never committed."""
    sys.stdout.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
