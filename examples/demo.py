"""The story of ``make demo``: storage nodes are killed in mid-save and in mid-restore, and nothing is lost.

Everything is real: daemons in processes of their own, kill -9, fsynced files. It cleans up after itself and exits 0 if
every claim it makes was seen to hold.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from train_tiny import digest

from sdrs import connect

HERE = Path(__file__).parent
SDRS = Path(sys.executable).with_name("sdrs")
STEPS, SAVE_EVERY, BALLAST_MIB = 30, 10, 384
WAIT_SECONDS = 60.0


class Story:
    """Chapters and facts on the terminal."""

    def __init__(self) -> None:
        self._chapter = 0
        self._bold, self._green, self._dim, self._plain = (
            ("\033[1m", "\033[32m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "", "")
        )

    def chapter(self, title: str) -> None:
        self._chapter += 1
        print(f"\n{self._bold}{self._chapter}. {title}{self._plain}", flush=True)

    def tell(self, text: str) -> None:
        print(f"   {text}", flush=True)

    def quote(self, text: str) -> None:
        for line in text.rstrip().splitlines():
            print(f"   {self._dim}│{self._plain} {line}", flush=True)

    def check(self, holds: bool, claim: str) -> None:
        if not holds:
            raise SystemExit(f"   ✗ NOT TRUE: {claim}")
        print(f"   {self._green}✓{self._plain} {claim}", flush=True)


story = Story()


def run_sdrs(*arguments: str, allow: tuple[int, ...] = (0,)) -> str:
    """Run the command line as a user would, and show what it says."""
    story.tell(f"$ sdrs {' '.join(arguments)}")
    done = subprocess.run([str(SDRS), *arguments], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    story.quote(done.stdout + done.stderr)
    if done.returncode not in allow:
        raise SystemExit(f"sdrs {' '.join(arguments)} ended with {done.returncode}")
    return done.stdout


@contextmanager
def cluster_folder() -> Iterator[Path]:
    """A folder beside the working folder, because the temporary folder may be memory and would prove nothing."""
    folder = Path(tempfile.mkdtemp(prefix=".sdrs-demo-", dir=Path.cwd()))
    try:
        yield folder
    finally:
        subprocess.run([str(SDRS), "down", "--dir", str(folder / "cluster")], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def trainer(job: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "train_tiny.py"), "--job", job, "--steps", str(STEPS)]
    command += ["--save-every", str(SAVE_EVERY), "--ballast-mib", str(BALLAST_MIB), "--pool", "fast"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout
    for line in process.stdout:
        story.quote(line)
        yield line.rstrip()


def digest_in(line: str) -> str:
    found = re.search(r"digest (\w+)", line)
    assert found, line
    return found.group(1)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {WAIT_SECONDS:.0f} s in vain: {what}")
        time.sleep(0.005)


def receiving(folder: Path, node_id: str) -> bool:
    """Whether the node writes a fragment that is not in place yet: the middle of a save."""
    for file in folder.glob(f"cluster/{node_id}/disk-*/tmp/*"):
        try:
            if file.stat().st_blocks > 2048:
                return True
        except FileNotFoundError:
            continue
    return False


def kill_9(node_id: str) -> None:
    pid = next(node["pid"] for node in json.loads(ask("node", "list")) if node["id"] == node_id)
    os.kill(pid, signal.SIGKILL)
    story.tell(f"kill -9 {pid}   ({node_id})")


def ask(*arguments: str) -> str:
    """What the command line tells programs."""
    done = subprocess.run(
        [str(SDRS), *arguments, "-o", "json"], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
    if done.returncode not in (0, 3):
        raise SystemExit(f"sdrs {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ask("group", "list", "--pool", "fast"))
    return found


def run_to_the_end(job: str) -> str:
    """The digest of the final state."""
    process = trainer(job)
    lines = list(lines_of(process))
    if process.wait() != 0:
        raise SystemExit(f"the trainer of {job} failed with {process.returncode}")
    return digest_in(lines[-1])


def train_while_the_primary_dies(folder: Path, job: str) -> tuple[str, str]:
    """The digest of the final state, and the node that was killed in the middle of the second save."""
    process = trainer(job)
    victim, last = "", ""
    for line in lines_of(process):
        last = line
        if line.startswith(f"saving step {2 * SAVE_EVERY} "):
            # Ranks of this host are sent to the first group.
            victim = groups()[0]["primary"]
            wait_until(partial(receiving, folder, victim), "bytes of the save to arrive at its primary")
            kill_9(victim)
    if process.wait() != 0:
        raise SystemExit(f"the trainer of {job} failed with {process.returncode}")
    return digest_in(last), victim


def restore_while_a_holder_dies(job: str) -> tuple[str, str]:
    """The digest of what was restored, and the node that was killed while it was being read."""
    victim = ""

    def progress(read_bytes: int, total_bytes: int) -> None:
        nonlocal victim
        if not victim and read_bytes > total_bytes // 10:
            victim = next(node["id"] for node in json.loads(ask("node", "list")) if node["id"] in holders)
            kill_9(victim)

    with connect() as cluster:
        ckpts = cluster.checkpoints(job)
        holders = {holder.node_id for shard in ckpts.shards(STEPS) for blob in shard.blobs for holder in blob.holders}
        state = ckpts.restore(STEPS, progress=progress)
    return digest(state), victim


def tell_the_story(folder: Path) -> None:
    story.chapter("A cluster on this machine: a controller, four storage nodes, a pool that keeps two copies")
    told = run_sdrs("up", "--nodes", "4", "--dir", str(folder / "cluster"), "--port", "0")
    found = re.search(r"sdrs://[\w.:]+", told)
    assert found, told
    os.environ["SDRS_URL"] = found.group()  # the trainers find the cluster by it
    run_sdrs("pool", "create", "fast", "--level", "L2", "--mirrors", "2")
    run_sdrs("group", "list", "--pool", "fast")

    story.chapter("A model trains undisturbed; every save is fsynced on two nodes before it counts")
    wanted = run_to_the_end("undisturbed")

    story.chapter("The same training; its primary is killed in the middle of a save")
    final, victim = train_while_the_primary_dies(folder, "unlucky")
    story.check(final == wanted, "the training went on by itself, to the very weights of the undisturbed one")
    steps = [checkpoint["step"] for checkpoint in json.loads(ask("ckpt", "list", "unlucky"))]
    expected = [STEPS - SAVE_EVERY * n for n in range(STEPS // SAVE_EVERY)]
    story.check(steps == expected, f"every step that was saved is there, once: {steps}")
    levels = {checkpoint["level"] for checkpoint in json.loads(ask("ckpt", "list", "unlucky"))}
    story.check(levels == {"L2"}, "each of them at L2: no save was acknowledged with less")
    story.check(all(victim not in group["members"] for group in groups()), f"no group counts on {victim} any more")
    run_sdrs("history", "--limit", "6")

    story.chapter("The node comes back: what it holds counts again")
    run_sdrs("up", "--dir", str(folder / "cluster"))
    wait_until(lambda: any(group["primary"] == victim for group in groups()), f"{victim} to lead its group again")
    story.check(True, f"{victim} leads its own group again")

    story.chapter("A holder is killed in the middle of a restore")
    restored, victim = restore_while_a_holder_dies("unlucky")
    story.check(restored == wanted, f"step {STEPS} came back bit for bit, although {victim} died while it was read")
    run_sdrs("status", allow=(0, 3))
    run_sdrs("up", "--dir", str(folder / "cluster"))

    story.chapter("What is stored is checked where it lies: every copy of every blob")
    run_sdrs("ckpt", "verify", "unlucky", str(STEPS))
    run_sdrs("ckpt", "verify", "unlucky", str(2 * SAVE_EVERY))

    story.chapter("The end: the cluster stops, the demo cleans up")
    run_sdrs("down", "--dir", str(folder / "cluster"))


def main() -> None:
    started = time.monotonic()
    with cluster_folder() as folder:
        # A demo must neither find another cluster of this user nor leave a pointer to its own.
        os.environ.pop("SDRS_URL", None)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        tell_the_story(folder)
    print(f"\nAll of it held, in {time.monotonic() - started:.0f} s. Next: README.md\n")


if __name__ == "__main__":
    main()
