"""``python -m sdrs_storaged``."""

from __future__ import annotations

from sdrs_storaged.app import main

main()
