"""Runs attempts as Slurm jobs. Which nodes, the scheduler has decided; Slurm gives them, watches them and cleans up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from errno import ENOENT
from pathlib import Path

from sdrs_core.errors import InvalidArgumentError, SdrsError, UnavailableError
from sdrs_scheduler.executors.executor import Executor, LaunchOrder, NodeFacts, RunFacts, RunState
from sdrs_scheduler.executors.slurm import states
from sdrs_scheduler.executors.slurm.commands import SlurmCommands, SlurmJob
from sdrs_scheduler.executors.slurm.log_tail import tail_of
from sdrs_scheduler.executors.slurm.run_folder import RunFolder
from sdrs_scheduler.executors.slurm.script import job_name, job_script, node_script, signal_script
from sdrs_scheduler.executors.slurm.settings import SlurmSettings


class SlurmExecutor(Executor):
    """``folder`` must be the same one on this host and on all nodes: a shared file system."""

    name = "slurm"

    def __init__(
        self,
        folder: Path,
        settings: SlurmSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = folder.absolute()
        self._settings = settings or SlurmSettings()
        self._slurm = SlurmCommands(self._settings)
        self._clock = clock
        with self._shared_folder():
            self._root.mkdir(parents=True, exist_ok=True)

    def nodes(self) -> tuple[NodeFacts, ...]:
        return states.node_facts(self._slurm.nodes())

    def launch(self, order: LaunchOrder) -> None:
        with self._shared_folder():
            self._launch(order)

    def poll(self, runs: Sequence[str]) -> Mapping[str, RunFacts]:
        with self._shared_folder():
            folders = {run: self._folder(run) for run in runs}
            ends = {run: folder.read_end() for run, folder in folders.items()}
            asked = [run for run, end in ends.items() if end is None]
            # Before Slurm is asked: what is submitted while it answers is not among what it tells.
            submitted = {run: folders[run].begun_job() or folders[run].submitted_job() for run in asked}
            jobs = self._jobs(asked) if asked else {}
            return {run: end or self._facts(run, jobs[run], submitted[run]) for run, end in ends.items()}

    def warn(self, run: str, signal: str) -> None:
        with self._shared_folder():
            self._signal(run, signal)

    def dump_stacks(self, run: str) -> None:
        with self._shared_folder():
            self._signal(run, "USR2")

    def kill(self, run: str) -> None:
        with self._shared_folder():
            if self._folder(run).read_end() is None:
                # All of that name, so that nothing which was submitted twice begins now.
                for job in self._jobs([run])[run]:
                    if states.state_of(job) is not RunState.ENDED:
                        self._slurm.kill(job.id)

    def log_tail(self, run: str, max_bytes: int) -> str:
        with self._shared_folder():
            return tail_of(self._folder(run).output_files(), max_bytes)

    def forget(self, run: str) -> None:
        with self._shared_folder():
            self._folder(run).forget()

    def erase(self, run: str) -> None:
        with self._shared_folder():
            self._folder(run).erase()

    def _launch(self, order: LaunchOrder) -> None:
        folder = self._folder(order.run)
        if folder.submitted_job() or folder.begun_job():
            return
        _check(order)
        if order.excluded_nodes:
            # Slurm refuses names that it does not know; a node that left it, or another executor's, is no danger.
            known = {node.name for node in self.nodes()}
            order = replace(order, excluded_nodes=tuple(name for name in order.excluded_nodes if name in known))
        scripts = {
            "job.sh": job_script(order, folder.path, self._settings),
            "node.sh": node_script(order, folder.path),
            "signal.sh": signal_script(order, folder.path),
        }
        with folder.locked(self._settings.deadline_seconds) as lock:
            if not folder.submitted_job() and not folder.begun_job():
                # Of a scheduler that was killed before it could write down what it had submitted.
                orphan = self._job(order.run, folder)
                folder.prepare(order, scripts)
                folder.record_submission(orphan.id if orphan else self._slurm.submit(folder.job_script, lock))

    def _facts(self, run: str, jobs: Sequence[SlurmJob], submitted: int) -> RunFacts:
        folder = self._folder(run)
        files = folder.files()
        job = states.chosen(jobs, files.claimed_by)
        if job is None:
            if not submitted:
                return RunFacts(RunState.UNKNOWN)
            job = self._slurm.accounted(submitted, job_name(run))
            if job is None:
                facts = states.forgotten_facts(submitted, files)
                if facts.state is RunState.ENDED:
                    folder.record_end(facts)
                return facts
        if states.state_of(job) is not RunState.ENDED:
            return states.live_facts(job, files)
        if not folder.exists():
            return RunFacts(RunState.UNKNOWN)  # erased, and Slurm remembers it for a while
        job = self._slurm.details(job)
        if not states.is_settled(job, files, self._clock(), self._settings.settle_seconds):
            return states.live_facts(job, files)
        # Whether a node is down is seen now only, so the end is put down once and for all.
        facts = states.end_facts(job, files, self._down_nodes() if job.state in states.LOST_A_NODE else ())
        folder.record_end(facts)
        return facts

    def _down_nodes(self) -> list[str]:
        return [node.name for node in self.nodes() if not node.is_up]

    def _signal(self, run: str, signal: str) -> None:
        folder = self._folder(run)
        if folder.read_end() is not None:
            return
        job = self._job(run, folder)
        if job and states.state_of(job) is RunState.RUNNING:
            self._slurm.signal(job.id, signal)

    def _job(self, run: str, folder: RunFolder) -> SlurmJob | None:
        return states.chosen(self._jobs([run])[run], folder.files().claimed_by)

    def _jobs(self, runs: Sequence[str]) -> dict[str, list[SlurmJob]]:
        """By run. A job of the same name whose script is elsewhere is another scheduler's."""
        found: dict[str, list[SlurmJob]] = {job_name(run): [] for run in runs}
        for job in self._slurm.jobs(found):
            found[job.name].append(job)
        ours = {run: os.path.realpath(self._folder(run).job_script) for run in runs}
        return {run: [job for job in found[job_name(run)] if os.path.realpath(job.script) == ours[run]] for run in runs}

    @contextmanager
    def _shared_folder(self) -> Iterator[None]:
        """A file system that is away or broken says nothing about runs."""
        try:
            yield
            if not self._root.is_dir():
                raise FileNotFoundError(ENOENT, "it is gone")
        except SdrsError:
            raise
        except OSError as error:
            raise UnavailableError(
                f"the shared folder of Slurm runs, {self._root}, does not answer ({error.strerror or error}): is it "
                "mounted on the scheduler's host, with room left?"
            ) from error

    def _folder(self, run: str) -> RunFolder:
        if "/" in run or run.startswith("."):
            raise InvalidArgumentError(f"{run!r} cannot name a run: it names a folder")
        return RunFolder(self._root / run)


def _check(order: LaunchOrder) -> None:
    if not order.slots:
        raise InvalidArgumentError(f"{order.run}: no nodes were chosen for it", run=order.run)
    if not Path(order.workdir).is_dir():
        raise InvalidArgumentError(
            f"{order.run}: its workdir {order.workdir} is missing: create it on a file system that the scheduler and "
            "all nodes share",
            run=order.run,
        )
