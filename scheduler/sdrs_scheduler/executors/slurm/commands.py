"""Slurm's commands, each with a deadline; their output in fixed formats, which all versions since 20.11 have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_scheduler.executors.slurm.settings import SlurmSettings

# In the words of Slurm: nothing was decided, it may go well the next time.
_OUT_OF_REACH = (
    "unable to contact slurm controller",
    "unable to establish controller",
    "unable to establish configuration source",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "connection reset",
    "transport endpoint",
    "zero bytes were transmitted",
    "unexpected message received",
    "protocol authentication error",
    "munge",
    "temporarily",
    "slurm backup controller in standby mode",
    "too many open files",
    "resource temporarily unavailable",
    "cannot allocate memory",
)
# What commands say of a job that is over, or that Slurm has already dropped from its memory.
_OVER = ("invalid job id", "already completing or completed", "job/step already", "job is pending execution")

_JOB_FORMAT = "%i|%T|%r|%S|%e|%N|%j|%o"
_NODE_FORMAT = "%N|%T|%G|%R|%f|%E"
_ACCOUNT_FORMAT = "JobIDRaw,State,Start,End,ExitCode,NodeList,JobName"


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as Slurm tells it; times in Unix seconds, 0 where there is none."""

    id: int
    name: str
    state: str
    reason: str = ""
    started_unix: int = 0
    ended_unix: int = 0
    # Where it runs or ran, as Slurm writes it: n[1-2].
    node_list: str = ""
    # The path of its script.
    script: str = ""
    exit_code: int = 0
    exit_signal: int = 0
    failed_node: str = ""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node in one partition."""

    name: str
    state: str
    gres: str
    partition: str
    features: str
    reason: str


class SlurmCommands:
    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings

    def submit(self, script: Path, lock: int) -> int:
        """The job's number. ``lock`` stays open until sbatch has ended, also when we are killed in the meantime."""
        answer = self._run(["sbatch", "--parsable", str(script)], pass_fds=(lock,))
        number = answer.strip().splitlines()[-1].split(";")[0] if answer.strip() else ""
        if not number.isdigit():
            raise UnavailableError(f"sbatch did not tell the number of the job that it submitted: {answer!r}")
        return int(number)

    def jobs(self, names: Iterable[str]) -> list[SlurmJob]:
        """Those that Slurm has in memory: what ended stays there for MinJobAge."""
        filters = ["--states=all", f"--user={os.getuid()}", "--name=" + ",".join(names)]
        answer = self._run(["squeue", "--noheader", *filters, f"--format={_JOB_FORMAT}"])
        return [_job(line.split("|", 7)) for line in answer.splitlines() if line.count("|") >= 7]

    def details(self, job: SlurmJob) -> SlurmJob:
        """With how it ended, which squeue does not tell."""
        try:
            answer = self._run(["scontrol", "--oneliner", "show", "job", str(job.id)])
        except InvalidArgumentError as error:
            if _says(str(error), _OVER):
                return job
            raise
        code, signal = _exit_code(_field(answer, "ExitCode"))
        failed_node = _field(answer, "FailedNode").replace("(null)", "")
        return replace(job, exit_code=code, exit_signal=signal, failed_node=failed_node)

    def accounted(self, job_id: int, name: str) -> SlurmJob | None:
        """From accounting, if there is any, what slurmctld has dropped."""
        try:
            which = ["--allocations", f"--jobs={job_id}", f"--format={_ACCOUNT_FORMAT}"]
            answer = self._run(["sacct", "--noheader", "--parsable2", *which])
        except InvalidArgumentError:
            return None  # there is no accounting here
        for line in answer.splitlines():
            words = line.split("|", 6)
            # Numbers begin again where a Slurm has lost its state: the name says whether it is ours.
            if len(words) == 7 and words[6] == name:
                code, signal = _exit_code(words[4])
                # "CANCELLED by 1000"
                state = words[1].split()[0] if words[1] else ""
                job = SlurmJob(job_id, name, state, "", _time(words[2]), _time(words[3]), words[5])
                return replace(job, exit_code=code, exit_signal=signal)
        return None

    def nodes(self) -> list[SlurmNode]:
        where = [f"--partition={self._settings.partition}"] if self._settings.partition else []
        answer = self._run(["sinfo", "--noheader", "--Node", *where, f"--format={_NODE_FORMAT}"])
        return [SlurmNode(*line.split("|", 5)) for line in answer.splitlines() if line.count("|") >= 5]

    def signal(self, job_id: int, signal: str) -> None:
        """To the shell of the job's script."""
        self._try(["scancel", "--batch", f"--signal={signal}", str(job_id)])

    def kill(self, job_id: int) -> None:
        # scancel alone asks with TERM first, and waits for KillWait: whoever kills has waited long enough.
        self._try(["scancel", "--signal=KILL", f"{job_id}.0"])
        self._try(["scancel", str(job_id)])

    def _try(self, command: Sequence[str]) -> None:
        """What is over need not hear it."""
        try:
            self._run(command)
        except InvalidArgumentError as error:
            if not _says(str(error), _OVER):
                raise

    def _run(self, command: Sequence[str], pass_fds: tuple[int, ...] = ()) -> str:
        deadline_seconds = self._settings.deadline_seconds
        environment = command_environment(os.environ, self._settings.conf_file)
        if command[0] != "sbatch":
            environment["SLURM_TIME_FORMAT"] = "%s"
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=deadline_seconds,
                pass_fds=pass_fds,
                env=environment,
                check=False,
            )
        except FileNotFoundError:
            raise UnavailableError(
                f"{command[0]} is not on PATH of the scheduler: install Slurm's client commands on its host"
            ) from None
        except subprocess.TimeoutExpired:
            raise UnavailableError(
                f"{command[0]} did not answer within {deadline_seconds:g} s: is slurmctld up? (scontrol ping)"
            ) from None
        if done.returncode == 0:
            return done.stdout
        words = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        if done.returncode < 0 or not words or _says(words, _OUT_OF_REACH):
            raise UnavailableError(f"{command[0]} got no answer from Slurm: {words or f'exit {done.returncode}'}")
        raise InvalidArgumentError(f"Slurm refused {command[0]}: {words}")


def command_environment(environment: Mapping[str, str], conf_file: str) -> dict[str, str]:
    """Ours, without what would change the meaning of options: a scheduler may itself run in a Slurm job."""
    kept = {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SLURM_", "SBATCH_", "SQUEUE_", "SINFO_", "SCANCEL_", "SACCT_")) or name == "SLURM_CONF"
    }
    return {**kept, "SLURM_CONF": conf_file} if conf_file else kept


def _says(words: str, phrases: Sequence[str]) -> bool:
    lower = words.lower()
    return any(phrase in lower for phrase in phrases)


def _job(words: Sequence[str]) -> SlurmJob:
    number, state, reason, started, ended, node_list, name, script = words
    return SlurmJob(
        # An array would be 12_3; ours are none.
        int(number.partition("_")[0]),
        name,
        state,
        "" if reason == "None" else reason,
        _time(started),
        _time(ended),
        node_list,
        script,
    )


def _time(word: str) -> int:
    return int(word) if word.isdigit() else 0  # N/A, NONE, Unknown


def _field(line: str, name: str) -> str:
    return next((word.partition("=")[2] for word in line.split() if word.startswith(f"{name}=")), "")


def _exit_code(word: str) -> tuple[int, int]:
    """``3:0``: the code and the signal of the batch script."""
    code, _, signal = word.partition(":")
    return (int(code) if code.isdigit() else 0, int(signal) if signal.isdigit() else 0)
