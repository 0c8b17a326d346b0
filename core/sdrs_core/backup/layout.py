"""What is where in a bucket, below a target's prefix (format 1; docs/backup-format.md shows how it is read by hand).

::

    sdrs-backup.json                          whose prefix this is: {"format": 1, "cluster": ID, ...}
    lock.json                                 who works on it now, and until when
    ID/keys/KEY.json                          a data key, wrapped (encrypted targets only)
    ID/objects/HH/HASH-RUN                    the bytes of one blob; HASH is its BLAKE3, RUN who uploaded it (P25)
    ID/shards/SAVE/RANK.json                  one rank's blobs in order: sizes, hashes, and which object has each
    ID/checkpoints/JOB/STEP/SAVE.json         the commit record, written last: what has none is not there (I2)
"""

from __future__ import annotations

OWNER = "sdrs-backup.json"
LOCK = "lock.json"


def data_key(cluster_id: str, key_id: str) -> str:
    return f"{data_keys(cluster_id)}{key_id}.json"


def data_keys(cluster_id: str) -> str:
    return f"{cluster_id}/keys/"


def objects(cluster_id: str, hash_prefix: str = "") -> str:
    """What the keys begin with of all objects, or of those with such a hash."""
    folder = f"{cluster_id}/objects/"
    return folder + (hash_prefix if len(hash_prefix) <= 2 else f"{hash_prefix[:2]}/{hash_prefix}")


def object_key(cluster_id: str, content_hash: str, run_id: str) -> str:
    """P25: by content and by who uploaded it, so that what was condemned is never met again under its name."""
    return f"{objects(cluster_id)}{content_hash[:2]}/{content_hash}-{run_id}"


def all_shards(cluster_id: str) -> str:
    return f"{cluster_id}/shards/"


def shards(cluster_id: str, save_id: str) -> str:
    return f"{all_shards(cluster_id)}{save_id}/"


def shard(cluster_id: str, save_id: str, rank: int) -> str:
    return f"{shards(cluster_id, save_id)}{rank:06d}.json"


def checkpoints(cluster_id: str, job: str = "") -> str:
    return f"{cluster_id}/checkpoints/" + (f"{job}/" if job else "")


def checkpoint(cluster_id: str, job: str, step: int, save_id: str) -> str:
    return f"{checkpoints(cluster_id, job)}{step:016d}/{save_id}.json"


def parse_checkpoint(key: str) -> tuple[str, str, int, str]:
    """What ``checkpoint`` made it of; ValueError for any other key."""
    cluster_id, _, job, step, name = key.split("/")
    return cluster_id, job, int(step), name.removesuffix(".json")
