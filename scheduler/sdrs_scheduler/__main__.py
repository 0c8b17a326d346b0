"""The entry point: ``python -m sdrs_scheduler --config FILE``."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from sdrs_scheduler import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("sdrs"):
            raise  # ours, so a defect
        sys.stderr.write(f"sdrs_scheduler: the scheduler needs {package}: pip install 'sdrs[server]'\n")
        sys.exit(1)
    app.main()


if __name__ == "__main__":
    main()
