"""One connection for each cluster: DCP's writers and readers come and go with every checkpoint, and may be pickled."""

from __future__ import annotations

from sdrs.address import cluster_url
from sdrs.cluster import Cluster, connect

_clusters: dict[str, Cluster] = {}


def cluster_at(url: str | None) -> Cluster:
    """It stays for the next one; a forked child makes its own connections (``Cluster.process``)."""
    url = cluster_url(url)
    if url not in _clusters:
        # No lock, which could be held while the process forks. Of two that race here the first one stays.
        _clusters.setdefault(url, connect(url))
    return _clusters[url]
