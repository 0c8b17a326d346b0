"""What Slurm says and what nodes have written, put together: pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from signal import SIGKILL

from sdrs_scheduler.executors.executor import Exit, NodeFacts, RunFacts, RunState
from sdrs_scheduler.executors.slurm.commands import SlurmJob, SlurmNode

_WAITING = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"})
# COMPLETING too: processes may still be there, and its nodes are not free.
_RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT"})
# Its script came to its end, and so has written its last words.
_CAME_TO_ITS_END = frozenset({"COMPLETED", "FAILED"})
# Slurm gave it up because of a node.
LOST_A_NODE = frozenset({"NODE_FAIL", "BOOT_FAIL"})

# What sinfo tells of a node that takes jobs, or will once it is switched on.
_USABLE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "powering_up", "powered_down"})
# Marks behind a state: not responding, powered down, powering up, powering down, ...
_MARKS = "*~#!%$@^-+"
_NOT_RESPONDING = "*"

_GRES = re.compile(r"(?:^|,)(?:gres/)?gpu(?::(?P<type>[^:(),]+))??:(?P<count>\d+)")
_NODE_FAILURE = re.compile(r"Node failure on (\S+)")
_OUT_OF_MEMORY = re.compile(r"error: (\S+): tasks? [^:]*: Out Of Memory", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What the scripts of a run have written into its folder."""

    # In Slurm's order, which is the order of ranks; as ordered, as long as the script has not begun.
    nodes: tuple[str, ...] = ()
    # By node: the exit code as bash tells it, and when.
    exits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # The job whose script began first; 0: none has. Others of the same name leave at once.
    claimed_by: int = 0
    began_unix_ms: int = 0
    # When its script came to its end; 0: it has not.
    over_unix_ms: int = 0
    # What srun and Slurm wrote.
    slurm_log: str = ""
    is_launched_once: bool = False
    log_files: tuple[str, ...] = ()


def chosen(jobs: Iterable[SlurmJob], claimed_by: int) -> SlurmJob | None:
    """The job that is the run, of all with its name: a submission that was believed lost may have come through."""
    # What sbatch was refused stays in Slurm's memory as well; it was never a job.
    by_id = {job.id: job for job in jobs if job.node_list or job.reason != "BadConstraints"}
    return by_id.get(claimed_by) or (by_id[min(by_id)] if by_id else None)


def state_of(job: SlurmJob) -> RunState:
    if job.state in _WAITING:
        return RunState.WAITING
    return RunState.RUNNING if job.state in _RUNNING else RunState.ENDED


def is_settled(job: SlurmJob, files: RunFiles, now_unix: float, settle_seconds: float) -> bool:
    """Whether the files of a run that ended can be believed to be all: shared file systems show them late."""
    if job.state not in _CAME_TO_ITS_END or job.exit_signal or files.over_unix_ms:
        return True
    return now_unix - job.ended_unix >= settle_seconds


def live_facts(job: SlurmJob, files: RunFiles) -> RunFacts:
    is_waiting = state_of(job) is RunState.WAITING
    verb = "waits" if is_waiting else job.state.lower()
    return RunFacts(
        # Also while the files of one that ended are awaited.
        RunState.WAITING if is_waiting else RunState.RUNNING,
        started_unix_ms=0 if is_waiting else job.started_unix * 1000,
        exits=_in_order(_recorded(files)),
        nodes=() if is_waiting else files.nodes,
        log_files=files.log_files,
        detail=f"Slurm job {job.id} {verb}" + (f": {job.reason}" if job.reason else ""),
    )


def end_facts(job: SlurmJob, files: RunFiles, down_nodes: Iterable[str] = ()) -> RunFacts:
    """``down_nodes``: of all of Slurm's, those that are down now; asked for only after a node failure."""
    has_started = bool(job.node_list) and job.node_list != "None assigned"
    lost = _lost(job, files, set(down_nodes)) if has_started else ()
    exits = _recorded(files)
    if has_started:
        silent = [node for node in _expected(files) if node not in exits and node not in lost]
        if silent and not exits and not lost and job.exit_code:
            # The script failed before any node began.
            exits[silent.pop(0)] = (exit_of(job.exit_code), 0)
        exits |= _killed(silent)
    ended_unix = max(job.ended_unix, job.started_unix)
    return RunFacts(
        RunState.ENDED,
        started_unix_ms=job.started_unix * 1000 if has_started else 0,
        ended_unix_ms=ended_unix * 1000,
        exits=_in_order(_with_memory(exits, job, files)),
        lost_nodes=lost,
        nodes=files.nodes if has_started else (),
        log_files=files.log_files,
        detail=f"Slurm job {job.id}: {job.state}" + (f" ({job.reason})" if job.reason else ""),
        preempted=job.state == "PREEMPTED",
    )


def forgotten_facts(job_id: int, files: RunFiles) -> RunFacts:
    """Slurm has dropped the job from its memory, and keeps no accounts."""
    if not files.over_unix_ms:
        return RunFacts(
            RunState.UNKNOWN,
            nodes=files.nodes,
            log_files=files.log_files,
            detail=f"Slurm no longer knows job {job_id}, and how it ended is not on record",
        )
    exits = _recorded(files)
    return RunFacts(
        RunState.ENDED,
        started_unix_ms=files.began_unix_ms,
        ended_unix_ms=files.over_unix_ms,
        exits=_in_order(exits | _killed(node for node in _expected(files) if node not in exits)),
        nodes=files.nodes,
        log_files=files.log_files,
        detail=f"Slurm no longer knows job {job_id}: told from what its nodes wrote",
    )


def node_facts(nodes: Sequence[SlurmNode]) -> tuple[NodeFacts, ...]:
    """One for each node, of its lines, one for each partition."""
    by_name: dict[str, list[SlurmNode]] = {}
    for node in nodes:
        by_name.setdefault(node.name, []).append(node)
    return tuple(_facts_of_node(lines) for lines in by_name.values())


def _facts_of_node(lines: Sequence[SlurmNode]) -> NodeFacts:
    node = lines[0]
    word = node.state.rstrip(_MARKS)
    answers = _NOT_RESPONDING not in node.state[len(word) :]
    is_up = word in _USABLE and answers
    gpus, gpu_type = gpus_of(node.gres)
    features = () if node.features in ("", "(null)") else node.features.split(",")
    problem = ""
    if not is_up:
        reason = "" if node.reason in ("", "none") else f": {node.reason}"
        problem = f"{word}{reason}" if word not in _USABLE else f"slurmd does not answer{reason}"
    groups = frozenset([*(line.partition for line in lines), *features])
    return NodeFacts(node.name, gpus, gpu_type, groups, is_up, problem)


def gpus_of(gres: str) -> tuple[int, str]:
    """``gpu:a100:8(S:0-1)`` → 8, a100; a node with several types has no type."""
    found = [(match["type"] or "", int(match["count"])) for match in _GRES.finditer(gres)]
    types = {kind for kind, _ in found}
    return sum(count for _, count in found), types.pop() if len(types) == 1 else ""


def exit_of(code: int) -> Exit:
    """bash tells of a signal as 128 + its number; our own codes, 200 and 210, are above all signals."""
    return Exit(signal=code - 128) if 128 < code <= 128 + 64 else Exit(code=code)


def _expected(files: RunFiles) -> tuple[str, ...]:
    return files.nodes[:1] if files.is_launched_once else files.nodes


def _recorded(files: RunFiles) -> dict[str, tuple[Exit, int]]:
    return {node: (exit_of(code), unix_ms) for node, (code, unix_ms) in files.exits.items()}


def _killed(nodes: Iterable[str]) -> dict[str, tuple[Exit, int]]:
    """A node that wrote nothing was killed together with the shell that would have written it, after all others."""
    return {node: (Exit(signal=SIGKILL), 1 << 62) for node in nodes}


def _lost(job: SlurmJob, files: RunFiles, down_nodes: set[str]) -> tuple[str, ...]:
    if job.state not in LOST_A_NODE:
        return ()
    named = {job.failed_node} | set(_NODE_FAILURE.findall(files.slurm_log)) | down_nodes
    found = tuple(node for node in files.nodes if node in named)
    return found or tuple(node for node in files.nodes if node not in files.exits)


def _with_memory(exits: Mapping[str, tuple[Exit, int]], job: SlurmJob, files: RunFiles) -> dict[str, tuple[Exit, int]]:
    named = set(_OUT_OF_MEMORY.findall(files.slurm_log))
    is_any = job.state == "OUT_OF_MEMORY" and not named
    return {
        node: (replace(exit, out_of_memory=exit.code != 0 and (is_any or node in named)), unix_ms)
        for node, (exit, unix_ms) in exits.items()
    }


def _in_order(exits: Mapping[str, tuple[Exit, int]]) -> dict[str, Exit]:
    """What failed comes first, the earliest of it before all."""
    order = sorted(exits, key=lambda node: (exits[node][0].code == 0, exits[node][1], node))
    return {node: exits[node][0] for node in order}
