"""What a catalog's file says of itself in its first line, looked at before anything is started for it."""

from __future__ import annotations

import json
from pathlib import Path

from sdrs_core.errors import RefusedError

# A first line is far shorter; what has a longer one is no catalog.
_LINE_BYTES = 1 << 16


def refuse_snapshot(file: Path) -> None:
    """RefusedError for what `sdrs meta snapshot` wrote. What is no catalog at all is for the controller to tell."""
    with open(file, "rb") as source:
        line = source.readline(_LINE_BYTES)
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(header, dict) and "cluster_id" in header and header.get("sealed") is not True:
        # P18: nodes have seen what came after it, and would take it for a rollback.
        raise RefusedError(
            f"{file} is a snapshot, not an export: the cluster went on after it was written. Give the file that "
            "`sdrs meta export` wrote. If the catalog is lost: start without --import on an empty store, then `sdrs "
            f"meta rebuild --snapshot {file}` brings it back, together with what the nodes have since"
        )
