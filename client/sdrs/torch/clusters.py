"""One connection for each cluster: DCP's writers and readers come and go with every checkpoint, and may be pickled."""

from __future__ import annotations

import threading

from sdrs.address import cluster_url
from sdrs.cluster import Cluster, connect

_lock = threading.Lock()
_clusters: dict[str, Cluster] = {}


def cluster_at(url: str | None) -> Cluster:
    """It stays for the next one; a forked child makes its own connections (``Cluster.process``)."""
    url = cluster_url(url)
    with _lock:
        if url not in _clusters:
            _clusters[url] = connect(url)
        return _clusters[url]
