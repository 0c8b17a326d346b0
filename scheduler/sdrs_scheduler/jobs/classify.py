"""Why an attempt ended: from what was seen to a class of failure, and a sentence that tells it to people.

The job file's own failure policies come first, then what the job said by its exit code, then our rules: from what
explains most (a node that is gone) to what explains least (it crashed).
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sdrs_scheduler.executors.executor import Exit
from sdrs_scheduler.jobs.job import Verdict
from sdrs_scheduler.jobs.spec import Action, FailureClass, FailurePolicy

EXIT_REQUEUE = 75
EXIT_NEVER_RESTART = 93
EXIT_TRANSIENT = 200
EXIT_PERMANENT = 210

_BY_EXIT_CODE = {
    EXIT_REQUEUE: (FailureClass.REQUEUED, Action.REQUEUE, "it asked to be queued again"),
    EXIT_NEVER_RESTART: (FailureClass.NEVER_RESTART, Action.FAIL, "it asked never to be restarted"),
    EXIT_TRANSIENT: (FailureClass.TRANSIENT, Action.RESTART, "it calls its failure transient"),
    EXIT_PERMANENT: (FailureClass.PERMANENT, Action.FAIL, "it calls its failure permanent"),
}
# What people and kernels kill with, as opposed to what a process does to itself.
_KILLING = {signals.SIGKILL, signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGQUIT, signals.SIGXCPU}
_SHELL_SIGNAL_CODE = 128
_SHELL_SAYS = {126: "its command is no program", 127: "its command was not found: give its path, or set PATH"}

_GPU_WORDS = re.compile(
    r"uncorrectable ECC|fallen off the bus|NVRM: Xid|GPU is lost|CUDA error: (?:unknown error|uncorrectable)", re.I
)
_MEMORY_WORDS = re.compile(
    r"CUDA out of memory|OutOfMemoryError|^MemoryError|Cannot allocate memory|std::bad_alloc|oom-kill", re.I | re.M
)
_HANG_WORDS = re.compile(r"Watchdog caught collective operation timeout|collective operation timed? ?out", re.I)
_TORCHRUN_ROOT_CAUSE = re.compile(r"^Root Cause \(first observed failure\):$.*?^ *exitcode *: (-?\d+) ", re.M | re.S)
# How a traceback of Python ends, also behind what torchrun and mpirun put before each line.
_EXCEPTION = re.compile(r"^(?:\[[\w,]+\](?:<\w+>)?:? ?)?((?:\w+\.)*\w*(?:Error|Exception)(?:: .*)?)$", re.M)
_STORAGE_WORDS = re.compile(
    r"^(?:\S*\.)?(?:SaveFailedError|UnavailableError|NotRestorableError|StaleEpochError|DiskFailedError|FullError): ",
    re.M,
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was seen of the end of an attempt."""

    # By node; one that failed first comes first.
    exits: Mapping[str, Exit] = field(default_factory=dict)
    # Nodes of the attempt that are gone with what ran there, in the executor's word, and what is wrong with them.
    lost_nodes: Mapping[str, str] = field(default_factory=dict)
    # Those that are down as well, by now. A command that came to its end before is done all the same.
    down_nodes: Mapping[str, str] = field(default_factory=dict)
    # Of the GPUs that it had.
    bad_gpus: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    log_tail: str = ""
    # Of the patterns of the job's failure policies: what was found in the log, and which could not be looked for, why.
    pattern_matches: Mapping[str, str] = field(default_factory=dict)
    pattern_failures: Mapping[str, str] = field(default_factory=dict)
    # Failovers and outages of the storage shortly before the end, in the cluster's own words.
    storage_events: tuple[str, ...] = ()
    nan_step: int | None = None
    # It was warned of a preemption: for whom or why.
    warned_because: str = ""
    preempted_by_executor: bool = False
    # Why it never started; empty: it did.
    launch_error: str = ""
    # The executor has no trace of it.
    is_traceless: bool = False
    # In the executor's words.
    detail: str = ""

    @property
    def failed(self) -> tuple[str, Exit] | None:
        """The node that failed first, and how."""
        found = next(((node, exit) for node, exit in self.exits.items() if exit.code != 0), None)
        return found and (found[0], _behind_torchrun(found[1], self.log_tail))

    @property
    def is_success(self) -> bool:
        return bool(self.exits) and self.failed is None and not self.lost_nodes


def _behind_torchrun(exit: Exit, log_tail: str) -> Exit:
    """torchrun exits with 1 whatever its workers did, and writes down what the first of them to fail did."""
    told = _TORCHRUN_ROOT_CAUSE.search(log_tail) if exit.code == 1 else None
    if told is None:
        return exit
    code = int(told[1])
    return replace(exit, code=None, signal=-code) if code < 0 else replace(exit, code=code)


def exit_signal(exit: Exit) -> int | None:
    """Also where a shell in between tells it by its exit code."""
    if exit.signal is not None:
        return exit.signal
    code = (exit.code or 0) - _SHELL_SIGNAL_CODE
    return code if 0 < code < signals.NSIG and code in set(signals.Signals) else None


def exit_text(exit: Exit) -> str:
    number = exit_signal(exit)
    if exit.signal is None and exit.code == EXIT_TRANSIENT:
        number = None
    if number is not None:
        # Real-time signals have no names.
        name = next((f" ({known.name})" for known in signals.Signals if known == number), "")
        return f"was killed by signal {number}{name}"
    return f"exited with {exit.code}"


def classify(evidence: Evidence, policies: tuple[FailurePolicy, ...]) -> Verdict:
    if evidence.is_success:
        return Verdict(None, "all workers exited with 0")
    verdict = next((found for policy in policies if (found := _by_policy(evidence, policy)) is not None), None)
    verdict = verdict or _by_rule(evidence)
    untried = [policy for policy in policies if policy.match in evidence.pattern_failures]
    told = [f'; policy "{policy.name}" was not tried: {evidence.pattern_failures[policy.match]}' for policy in untried]
    return replace(verdict, sentence=verdict.sentence + "".join(told))


def _by_rule(evidence: Evidence) -> Verdict:
    # The last rule matches anything.
    return next(verdict for rule in _RULES if (verdict := rule(evidence)) is not None)


def _how(evidence: Evidence) -> str:
    """The end itself, as the beginning of a sentence."""
    if evidence.failed is None:
        return "the attempt ended" if not evidence.is_traceless else "the attempt left no trace"
    node, exit = evidence.failed
    return f"the worker on {node} {exit_text(exit)}"


def _by_policy(evidence: Evidence, policy: FailurePolicy) -> Verdict | None:
    code = evidence.failed[1].code if evidence.failed else None
    if policy.exit_codes and code not in policy.exit_codes:
        return None
    found = evidence.pattern_matches.get(policy.match)
    if policy.match and found is None:
        return None
    # The class it would have had anyway decides which budget is charged.
    plain = _by_rule(evidence)
    because = f'its log has "{_shown(found)}"' if found is not None else f"it exited with {code}"
    node = evidence.failed[0] if evidence.failed else ""
    return Verdict(
        plain.failure,
        f'{_how(evidence)}; {because}: policy "{policy.name}" says {policy.action}',
        policy.action,
        blamed_node=node if policy.action is Action.EXCLUDE_NODE else plain.blamed_node,
        policy=policy.name,
    )


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _not_started(evidence: Evidence) -> Verdict | None:
    if not evidence.launch_error:
        return None
    return Verdict(FailureClass.NOT_STARTED, f"it could not be started: {evidence.launch_error}")


def _exit_code(evidence: Evidence) -> Verdict | None:
    code = evidence.failed[1].code if evidence.failed else None
    if code not in _BY_EXIT_CODE:
        return None
    failure, action, meaning = _BY_EXIT_CODE[code]
    return Verdict(failure, f"{_how(evidence)}: {meaning}", action)


def _preempted(evidence: Evidence) -> Verdict | None:
    if evidence.preempted_by_executor:
        because = evidence.detail or "its executor took the nodes away"
        return Verdict(FailureClass.PREEMPTED, f"{_how(evidence)}: {because}", Action.REQUEUE)
    code = evidence.failed[1].code if evidence.failed else None
    # One that was warned leaves by itself, with 75 or however it likes; a word of its own that says more counts more.
    if not evidence.warned_because or (code in _BY_EXIT_CODE and code != EXIT_REQUEUE):
        return None
    return Verdict(FailureClass.PREEMPTED, f"preempted {evidence.warned_because}", Action.REQUEUE)


def _node_lost(evidence: Evidence) -> Verdict | None:
    if gone := {**evidence.lost_nodes, **evidence.down_nodes}:
        node, problem = next(iter(gone.items()))
        sentence = f"{_how(evidence)} while {node} was down ({problem or 'it does not answer'}): node lost"
        return Verdict(FailureClass.NODE_LOST, sentence, blamed_node=node)
    if evidence.is_traceless:
        return Verdict(FailureClass.NODE_LOST, "its executor has no trace of it any more: taken as a lost node")
    return None


def _gpu(evidence: Evidence) -> Verdict | None:
    for node, gpus in evidence.bad_gpus.items():
        for index, problem in gpus.items():
            sentence = f"{_how(evidence)}; GPU {index} of {node} is bad ({problem})"
            return Verdict(FailureClass.GPU, sentence, Action.EXCLUDE_NODE, blamed_node=node)
    if found := _GPU_WORDS.search(evidence.log_tail):
        node = evidence.failed[0] if evidence.failed else ""
        sentence = f'{_how(evidence)}; its log has "{found[0]}": a bad GPU'
        return Verdict(FailureClass.GPU, sentence, Action.EXCLUDE_NODE, blamed_node=node)
    return None


def _memory(evidence: Evidence) -> Verdict | None:
    if any(exit.out_of_memory for exit in evidence.exits.values()):
        return Verdict(FailureClass.OUT_OF_MEMORY, f"{_how(evidence)}: its memory limit, or the node's, was reached")
    if found := _MEMORY_WORDS.search(evidence.log_tail):
        return Verdict(FailureClass.OUT_OF_MEMORY, f'{_how(evidence)}; its log has "{found[0]}": out of memory')
    return None


def _not_a_number(evidence: Evidence) -> Verdict | None:
    if evidence.nan_step is None:
        return None
    sentence = f"its loss was not a number at step {evidence.nan_step}"
    return Verdict(FailureClass.NOT_A_NUMBER, sentence, Action.ROLL_BACK)


def _hang(evidence: Evidence) -> Verdict | None:
    if found := _HANG_WORDS.search(evidence.log_tail):
        return Verdict(FailureClass.HANG, f'{_how(evidence)}; its log has "{found[0]}": hang')
    return None


def _storage(evidence: Evidence) -> Verdict | None:
    if evidence.storage_events:
        sentence = f"{_how(evidence)} while the storage recovered ({evidence.storage_events[0]}): storage"
        return Verdict(FailureClass.STORAGE, sentence)
    if found := _STORAGE_WORDS.search(evidence.log_tail):
        return Verdict(FailureClass.STORAGE, f"{_how(evidence)} with a {found[0].strip().rstrip(':')}: storage")
    return None


def _killed(evidence: Evidence) -> Verdict | None:
    if not evidence.exits:
        # Who would have told how it ended is gone; that is no crash of the job's own.
        detail = f" ({evidence.detail})" if evidence.detail else ""
        return Verdict(FailureClass.KILLED, f"{_how(evidence)}, nobody knows how{detail}")
    if evidence.failed is None or exit_signal(evidence.failed[1]) not in _KILLING:
        return None
    return Verdict(FailureClass.KILLED, f"{_how(evidence)}, nobody knows by whom")


def _crash(evidence: Evidence) -> Verdict | None:
    code = evidence.failed[1].code if evidence.failed else None
    raised = _EXCEPTION.findall(evidence.log_tail)
    what = _SHELL_SAYS.get(code or 0, "") or (_shown(raised[-1]) if raised else evidence.detail)
    detail = f" ({what})" if what else ""
    return Verdict(FailureClass.CRASH, f"{_how(evidence)}: crash{detail}")


_RULES: tuple[Callable[[Evidence], Verdict | None], ...] = (
    _not_started,
    _preempted,
    _exit_code,
    _node_lost,
    _gpu,
    _memory,
    _not_a_number,
    _hang,
    _storage,
    _killed,
    _crash,
)
