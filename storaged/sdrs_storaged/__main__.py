"""The entry point ``storaged``, also ``python -m sdrs_storaged``."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from sdrs_storaged import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("sdrs"):
            raise  # ours, so a defect
        # The SDK installs without them, and brings this program all the same.
        sys.stderr.write(f"storaged: the daemon needs {package}: pip install 'sdrs[server]'\n")
        sys.exit(1)
    app.main()


if __name__ == "__main__":
    main()
