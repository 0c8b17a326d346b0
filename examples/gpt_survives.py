"""The story of ``make gpt``: a GPT is trained by two ranks, killed twice, and ends as if nothing had happened.

It is trained undisturbed first. Then, as another job, a rank is killed with -9 (torchrun starts the ranks again), and
later everything is (and is started again here, as a scheduler would). The two loss curves are compared bit for bit.
Exits 0 if they are the same, and says where they part if they are not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from demo import ask, cluster_folder, run_sdrs, story

GPT = Path(__file__).parent / "gpt.py"
RANKS = 2


@dataclass
class Curve:
    """The loss of each step, as text that holds every bit of it, over all starts of one job."""

    losses: dict[int, str] = field(default_factory=dict)
    resumed_after: list[int] = field(default_factory=list)
    repeated: set[int] = field(default_factory=set)
    difference: str = ""

    def add(self, step: int, loss: str) -> None:
        if step in self.losses:
            self.repeated.add(step)
            if loss != self.losses[step] and not self.difference:
                self.difference = f"step {step} had loss {self.losses[step]} at first, and {loss} when repeated"
        self.losses[step] = loss

    def difference_from(self, other: Curve) -> str:
        """Where they part first, or where this one parts from itself; empty if they are the same."""
        for step in sorted(self.losses.keys() | other.losses.keys()):
            mine, others = self.losses.get(step, "none"), other.losses.get(step, "none")
            if mine != others:
                return f"step {step} has loss {mine} here and {others} undisturbed"
        return self.difference


class Training:
    """One start of torchrun, and its ranks."""

    def __init__(self, command: list[str], log_path: Path, curve: Curve) -> None:
        self._curve = curve
        self._log_path = log_path
        self._rank_pids: dict[int, int] = {}
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def steps(self) -> Iterator[int]:
        """Each step as it is done, until the training ends or is killed."""
        assert self._process.stdout
        for line in self._process.stdout:
            if found := re.match(r"rank (\d+) of \d+ is pid (\d+)", line):
                self._rank_pids[int(found[1])] = int(found[2])
            elif found := re.match(r"step (\d+) loss (\S+)", line):
                self._curve.add(int(found[1]), found[2])
                yield int(found[1])
                continue
            elif found := re.match(r"resume after step (\d+)", line):
                self._curve.resumed_after.append(int(found[1]))
            story.quote(line)

    def kill_rank(self, rank: int) -> None:
        story.tell(f"kill -9 {self._rank_pids[rank]}   (rank {rank})")
        os.kill(self._rank_pids[rank], signal.SIGKILL)

    def kill_all(self) -> None:
        # torchrun first, or it would see its ranks die and start them again.
        pids = [self._process.pid, *self._rank_pids.values()]
        story.tell(f"kill -9 {' '.join(map(str, pids))}   (torchrun and all ranks)")
        self._kill(pids)

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def finish(self) -> None:
        if self._process.wait() != 0:
            story.quote(self._log_path.read_text()[-3000:])
            raise SystemExit(f"the training failed with {self._process.returncode}")

    def clean_up(self) -> None:
        if self._process.poll() is None:
            self._kill([self._process.pid, *self._rank_pids.values()])
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


class Job:
    def __init__(self, name: str, steps: int, save_every: int, folder: Path) -> None:
        self.name = name
        self.curve = Curve()
        self._log_path = folder / f"{name}.log"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        launcher += ["--max-restarts", "1", "--monitor-interval", "0.1"]
        self._command = [*launcher, str(GPT), "--job", name, "--steps", str(steps), "--save-every", str(save_every)]

    @contextmanager
    def start(self) -> Iterator[Training]:
        training = Training(self._command, self._log_path, self.curve)
        try:
            yield training
        finally:
            training.clean_up()


def train_undisturbed(job: Job) -> None:
    with job.start() as training:
        for _ in training.steps():
            pass
        training.finish()


def train_and_kill(job: Job, kill_rank_at: int, kill_all_at: int) -> None:
    """One rank is killed after a step, everything after a later one; returns with everything dead."""
    is_rank_killed = is_all_killed = False
    with job.start() as training:
        for step in training.steps():
            if step >= kill_rank_at and not is_rank_killed:
                story.tell(f"step {step} is done, and a rank is killed")
                training.kill_rank(1)
                is_rank_killed = True
            elif step >= kill_all_at and job.curve.resumed_after and not is_all_killed:
                story.tell(f"step {step} is done, and everything is killed")
                training.kill_all()
                is_all_killed = True
        if not is_all_killed:
            training.finish()
            raise SystemExit("the training ended before it was killed: give it more --steps")


def tell_the_story(folder: Path, steps: int, save_every: int) -> None:
    story.chapter("A cluster on this machine: a controller and two storage nodes, every checkpoint on both")
    told = run_sdrs("up", "--nodes", "2", "--dir", str(folder / "cluster"), "--port", "0")
    found = re.search(r"sdrs://[\w.:]+", told)
    assert found, told
    os.environ["SDRS_URL"] = found.group()  # the ranks find the cluster by it

    story.chapter(f"A GPT learns to add: {RANKS} ranks, {steps} steps, a checkpoint every {save_every} steps")
    undisturbed = Job("undisturbed", steps, save_every, folder)
    train_undisturbed(undisturbed)
    first, last = (float(undisturbed.curve.losses[step]) for step in (1, steps))
    story.check(last < first, f"it learns: the loss went from {first:.3f} to {last:.3f}")

    story.chapter("The same training; a rank is killed, then everything")
    unlucky = Job("unlucky", steps, save_every, folder)
    # When a save is begun the one before it is committed, so there is always one to go on from.
    kill_rank_at, kill_all_at = 2 * save_every + save_every // 2, 4 * save_every + save_every // 2
    train_and_kill(unlucky, kill_rank_at, kill_all_at)

    story.chapter("It is started once more, and nothing tells it where it was")
    train_undisturbed(unlucky)
    curve = unlucky.curve
    story.check(len(curve.resumed_after) == 2, f"it went on after steps {curve.resumed_after} by itself")
    story.check(bool(curve.repeated), f"{len(curve.repeated)} steps that no checkpoint had seen were trained again")
    if difference := curve.difference_from(undisturbed.curve):
        story.tell(difference)
    story.check(not difference, f"all {steps} losses are those of the undisturbed training, bit for bit")
    saved = {checkpoint["step"] for checkpoint in json.loads(ask("ckpt", "list", unlucky.name))}
    story.check(saved == set(range(save_every, steps + 1, save_every)), "every checkpoint of the way is there")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--steps", type=int, default=200)
    flags.add_argument("--save-every", type=int, default=20)
    options = flags.parse_args()
    if options.steps < 5 * options.save_every:
        flags.error("--steps must be five times --save-every or more: there are two kills on the way")
    started = time.monotonic()
    with cluster_folder() as folder:
        os.environ.pop("SDRS_URL", None)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        os.environ["OMP_NUM_THREADS"] = "1"  # torchrun would set it anyway, and say so
        # torchrun (seen in 2.13) keeps one store over its restarts; in it a restarted rank may find where the other one
        # was before it was killed, and fail to connect. Without sharing each restart gets a store of its own.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        tell_the_story(folder, options.steps, options.save_every)
    print(f"\nAll of it held, in {time.monotonic() - started:.0f} s.\n")


if __name__ == "__main__":
    main()
