"""Every key of the MetaStore, in one place.

::

    cluster                             the cluster's id, incarnation and secret
    node/ID   pool/NAME   layout/POOL   group/POOL/ID
    removing/ID                         a node is about to be removed: nothing on it goes on record any more (P7)
    epochs/POOL                         of groups that are gone: the highest epoch that nodes may remember
    automatic                           whether failover is paused
    repair                              how fast repair may be, if an operator said so
    term/INCARNATION/NUMBER             the id of each term, and where it began (P18)
    event/TIME/ID                       the history, newest first
    job/NAME                            current attempt; from where it resumed
    attempt/JOB/RUN/ORDINAL             the number of an attempt that was heard of
    save/JOB/STEP/ATTEMPT               one generation: pending, committed or set aside. The commit flips this key (I2)
    save/JOB/STEP/ATTEMPT/SAVE          one that was deleted while others refer to it: out of sight, and kept (P13)
    reference/HOME/SAVE                 a save refers to blobs of another, its home; it goes when the save is condemned
    trash/SAVE                          one that was aborted or deleted, on its way out
    shard/SAVE/RANK                     a rank's blobs and their holders (P3)
    round/JOB                           the restore round under way (P16)
    scrub                               the scrub under way and how far it is, or the last one; when each kind was done
    backup/target/NAME                  where backups go, and since when that fails
    backup/policy/TARGET/POOL[/JOB]     when, and how much is kept; when it was last done
    backup/run/TARGET                   the run under way and how far it is, or else the last one
    backup/object/TARGET/IDENTITY       content that the bucket has, by its BLAKE3, and under which name
    backup/copy/TARGET/SAVE             one backed-up checkpoint
    backup/uses/TARGET/SAVE/RANK        the content that a rank's shard in it is made of
    backup/import/TARGET/SAVE           the shards of an import are being written; gone once it can be seen
    schedule/...                        what a scheduler keeps here; its own business (schedule_records.py)
    seal                                the catalog was exported and goes on elsewhere (P18): nothing changes any more
    replacing                           a catalog is being put in the place of an empty one; gone once it is whole
    bookmark                            written by an export to know when it has caught up with changes

Steps and attempts count down, so that a plain range gives the newest first.
"""

from __future__ import annotations

import xxhash

from sdrs_core.attempts import Attempt
from sdrs_core.ids import MAX_STEP

CLUSTER = "cluster"
AUTOMATIC = "automatic"
REPAIR = "repair"
EVENTS = "event/"
TERMS = "term/"
NODES = "node/"
POOLS = "pool/"
GROUPS = "group/"
LAYOUTS = "layout/"
JOBS = "job/"
SAVES = "save/"
TRASH = "trash/"
REFERENCES = "reference/"
ROUNDS = "round/"
SHARDS = "shard/"
SCRUB = "scrub"
BACKUP_TARGETS = "backup/target/"
BACKUP_POLICIES = "backup/policy/"
BACKUP_RUNS = "backup/run/"
SCHEDULE = "schedule/"
SEAL = "seal"
REPLACING = "replacing"
BOOKMARK = "bookmark"

MAX_ATTEMPT = 2**40
_MAX_UNIX_MS = 10**15
_MAX_ORDINAL = 10**6


def node(node_id: str) -> str:
    return f"{NODES}{node_id}"


def removing(node_id: str) -> str:
    return f"removing/{node_id}"


def pool(name: str) -> str:
    return f"{POOLS}{name}"


def layout(pool_name: str) -> str:
    return f"{LAYOUTS}{pool_name}"


def groups_of(pool_name: str) -> str:
    return f"{GROUPS}{pool_name}/"


def group(pool_name: str, group_id: str) -> str:
    return f"{groups_of(pool_name)}{group_id}"


def epoch_floor(pool_name: str) -> str:
    return f"epochs/{pool_name}"


def event(unix_ms: int, ordinal: int, event_id: str) -> str:
    """``ordinal`` counts the events of one controller: several may fall into one millisecond."""
    return f"{EVENTS}{_MAX_UNIX_MS - unix_ms:015d}/{_MAX_ORDINAL - ordinal % _MAX_ORDINAL:06d}/{event_id}"


def terms(incarnation: int) -> str:
    return f"{TERMS}{incarnation:06d}/"


def term(incarnation: int, number: int) -> str:
    return f"{terms(incarnation)}{number:012d}"


def job(name: str) -> str:
    return f"{JOBS}{name}"


def attempts_of_run(job_name: str, run: str) -> str:
    # A run's name may hold anything, a key may not.
    return f"attempt/{job_name}/{xxhash.xxh3_128_hexdigest(run.encode())}/"


def attempt(job_name: str, attempt: Attempt) -> str:
    return f"{attempts_of_run(job_name, attempt.run)}{attempt.ordinal}"


def ordinal_of(attempt_key: str) -> int:
    return int(attempt_key.rpartition("/")[2])


def saves_of_job(job_name: str) -> str:
    return f"{SAVES}{job_name}/"


def saves_of_step(job_name: str, step: int) -> str:
    return f"{saves_of_job(job_name)}{MAX_STEP - step:016d}/"


def save(job_name: str, step: int, attempt_number: int) -> str:
    return f"{saves_of_step(job_name, step)}{MAX_ATTEMPT - attempt_number:013d}"


def retired(job_name: str, step: int, attempt_number: int, save_id: str) -> str:
    """Beside where it was, so that the attempt may save the step again; met by whoever looks through all saves."""
    return f"{save(job_name, step, attempt_number)}/{save_id}"


def references_to(home_save_id: str) -> str:
    return f"{REFERENCES}{home_save_id}/"


def reference(home_save_id: str, save_id: str) -> str:
    return f"{references_to(home_save_id)}{save_id}"


def trash(save_id: str) -> str:
    return f"{TRASH}{save_id}"


def shards(save_id: str) -> str:
    return f"{SHARDS}{save_id}/"


def shard(save_id: str, rank: int) -> str:
    return f"{shards(save_id)}{rank:06d}"


def round_of(job_name: str) -> str:
    return f"{ROUNDS}{job_name}"


def backup_target(name: str) -> str:
    return f"{BACKUP_TARGETS}{name}"


def backup_policies_of(target: str) -> str:
    return f"{BACKUP_POLICIES}{target}/"


def backup_policy(target: str, pool_name: str, job_name: str = "") -> str:
    return f"{backup_policies_of(target)}{pool_name}" + (f"/{job_name}" if job_name else "")


def backup_run(target: str) -> str:
    return f"{BACKUP_RUNS}{target}"


def backup_objects(target: str) -> str:
    return f"backup/object/{target}/"


def backup_object(target: str, identity: str) -> str:
    return f"{backup_objects(target)}{identity}"


def backup_copies(target: str) -> str:
    return f"backup/copy/{target}/"


def backup_copy(target: str, save_id: str) -> str:
    return f"{backup_copies(target)}{save_id}"


def backup_uses_of(target: str, save_id: str = "") -> str:
    return f"backup/uses/{target}/" + (f"{save_id}/" if save_id else "")


def backup_uses(target: str, save_id: str, rank: int) -> str:
    return f"{backup_uses_of(target, save_id)}{rank:06d}"


def backup_imports(target: str) -> str:
    return f"backup/import/{target}/"


def backup_import(target: str, save_id: str) -> str:
    return f"{backup_imports(target)}{save_id}"
