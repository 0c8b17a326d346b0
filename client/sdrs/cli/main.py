"""The entry point ``sdrs``."""

from __future__ import annotations

import sys
from importlib.util import find_spec


def main() -> None:
    missing = [package for package in ("click", "rich") if find_spec(package) is None]
    if missing:
        # The SDK installs without them, into training images that have no use for a command line.
        sys.stderr.write(f"sdrs: error: the command line needs {' and '.join(missing)}: pip install 'sdrs[cli]'\n")
        sys.exit(1)
    from sdrs.cli.root import root

    root.main(prog_name="sdrs")


if __name__ == "__main__":
    main()
