"""The story of ``make demo``: the worst minute. Two storage nodes are killed in the middle of a save, two in the middle
of a restore, bytes are flipped on a disk, and nothing is lost. Then a job is killed twice, and comes back by itself.

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
STEPS, SAVE_EVERY, BALLAST_MIB = 30, 10, 192
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
    command += ["--save-every", str(SAVE_EVERY), "--ballast-mib", str(BALLAST_MIB), "--pool", "prod"]
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
    found: list[dict[str, Any]] = json.loads(ask("group", "list", "--pool", "prod"))
    return found


def run_to_the_end(job: str) -> str:
    """The digest of the final state."""
    process = trainer(job)
    lines = list(lines_of(process))
    if process.wait() != 0:
        raise SystemExit(f"the trainer of {job} failed with {process.returncode}")
    return digest_in(lines[-1])


def train_while_two_nodes_die(folder: Path, job: str) -> tuple[str, list[str]]:
    """The digest of the final state, and the nodes that were killed in the middle of the second save."""
    process = trainer(job)
    victims: list[str] = []
    last = ""
    for line in lines_of(process):
        last = line
        if line.startswith(f"saving step {SAVE_EVERY} "):
            # Ranks of this host are sent to the first group: its primary dies, and a member with it. Asked for one save
            # early: the next may be over before the answer is here.
            group = groups()[0]
            victims = [group["primary"], next(node for node in group["members"] if node != group["primary"])]
        elif line.startswith(f"saving step {2 * SAVE_EVERY} "):
            wait_until(partial(receiving, folder, victims[0]), "bytes of the save to arrive at its primary")
            for victim in victims:
                kill_9(victim)
    if process.wait() != 0:
        raise SystemExit(f"the trainer of {job} failed with {process.returncode}")
    return digest_in(last), victims


def restore_while_two_nodes_die(job: str, victims: list[str]) -> str:
    """The digest of what was restored while ``victims`` were killed."""
    left = list(victims)

    def progress(read_bytes: int, total_bytes: int) -> None:
        if left and read_bytes > total_bytes // 10:
            kill_9(left.pop())

    with connect(staging_bytes=0) as cluster:  # from the disks of nodes: this host still has it in memory
        return digest(cluster.checkpoints(job).restore(STEPS, progress=progress))


def restored_digest(job: str) -> str:
    with connect(staging_bytes=0) as cluster:
        return digest(cluster.checkpoints(job).restore(STEPS))


def job_file(folder: Path, name: str) -> Path:
    """The same training as a job."""
    words = [sys.executable, str(HERE / "train_tiny.py"), "--steps", str(STEPS), "--save-every", str(SAVE_EVERY)]
    wish = {
        "name": name,
        "command": [*words, "--ballast-mib", str(BALLAST_MIB), "--step-seconds", "0.3"],
        "resources": {"nodes": 1, "gpus_per_node": 1},
        "checkpoint": {"pool": "prod", "level": "L3"},
        "retry": {"max": 3, "backoff": {"initial": "1s"}},
    }
    file = folder / f"{name}.yaml"
    # JSON is YAML.
    file.write_text("{\n" + ",\n".join(f'  "{key}": {json.dumps(value)}' for key, value in wish.items()) + "\n}\n")
    story.quote(file.read_text())
    return file


def wait_for_line(name: str, attempt: int, words: str) -> str:
    """The first line with ``words`` in the log of an attempt, once it is there."""
    found: list[str] = []

    def look() -> bool:
        for known in json.loads(ask("job", "attempts", name)):
            if known["attempt"] == attempt:
                found.extend(file for file in known["log_files"] if Path(file).exists())
        return bool(found)

    wait_until(look, f"attempt {attempt} of {name} to begin")
    log = Path(found[0])
    wait_until(lambda: words in log.read_text(), f"attempt {attempt} of {name} to say {words!r}")
    return next(line for line in log.read_text().splitlines() if words in line)


def kill_worker(name: str, attempt: int) -> None:
    said = re.search(r"pid (\d+)", wait_for_line(name, attempt, " pid "))
    assert said
    os.kill(int(said.group(1)), signal.SIGKILL)
    story.tell(f"kill -9 {said.group(1)}   (the worker of attempt {attempt})")


def run_a_job_that_dies_twice(folder: Path, name: str) -> str:
    """How it ended. Its worker is killed; and then the next one in mid-save, together with the primary of its group."""
    run_sdrs("job", "submit", str(job_file(folder, name)))
    story.quote(wait_for_line(name, 1, f"saved step {SAVE_EVERY} "))
    kill_worker(name, 1)
    primary = groups()[0]["primary"]
    story.quote(wait_for_line(name, 2, "resume at step"))
    story.quote(wait_for_line(name, 2, f"saving step {2 * SAVE_EVERY} "))
    kill_worker(name, 2)
    kill_9(primary)
    over: list[str] = []

    def is_over() -> bool:
        over[:] = [json.loads(ask("job", "show", name))["state"]]
        return over[0] in ("succeeded", "failed")

    wait_until(is_over, f"the job {name} to be over")
    return over[0]


def is_healthy() -> bool:
    return bool(json.loads(ask("status"))["state"] == "healthy")


def flip_a_byte(folder: Path, job: str) -> Path:
    """In the parity of what the job saved last: nobody reads that while all is well."""
    with connect() as cluster:
        (shard,) = cluster.checkpoints(job).shards(STEPS)
    blob = max(shard.blobs, key=lambda blob: blob.size_bytes)
    fragment = next(folder.glob(f"cluster/*/disk-*/fragments/*/{blob.id}.5"))
    with fragment.open("r+b") as file:
        file.seek(fragment.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0xFF]))
    return fragment


def tell_the_story(folder: Path) -> None:
    story.chapter("A cluster on this machine: a controller, six storage nodes, a pool that codes 4+2")
    told = run_sdrs("up", "--nodes", "6", "--dir", str(folder / "cluster"), "--port", "0")
    found = re.search(r"sdrs://[\w.:]+", told)
    assert found, told
    os.environ["SDRS_URL"] = found.group()  # the trainers find the cluster by it
    run_sdrs("pool", "create", "prod", "--level", "L3", "--ec", "4+2")

    story.chapter("A model trains undisturbed; every save lies on six nodes, any four of which bring it back")
    wanted = run_to_the_end("undisturbed")

    story.chapter("The same training; two nodes are killed in the middle of a save, one of them its primary")
    final, victims = train_while_two_nodes_die(folder, "unlucky")
    story.check(final == wanted, "the training went on by itself, to the very weights of the undisturbed one")
    checkpoints = json.loads(ask("ckpt", "list", "unlucky"))
    expected = [STEPS - SAVE_EVERY * n for n in range(STEPS // SAVE_EVERY)]
    steps = [checkpoint["step"] for checkpoint in checkpoints]
    story.check(steps == expected, f"every step that was saved is there, once: {steps}")
    story.check({checkpoint["level"] for checkpoint in checkpoints} == {"L3"}, "each of them at L3")
    gone = set(victims)
    is_gone = all(gone.isdisjoint(group["members"]) for group in groups())
    story.check(is_gone, f"no group counts on {' or '.join(victims)} any more")
    story.check(restored_digest("unlucky") == wanted, f"step {STEPS} comes back bit for bit with both nodes dead")
    run_sdrs("status", allow=(0, 3))

    story.chapter("The nodes come back: what they hold counts again, what they missed is made anew")
    run_sdrs("up", "--dir", str(folder / "cluster"))
    wait_until(is_healthy, "the cluster to heal itself")
    story.check(True, "healthy again: every blob has all its fragments, each on a node of its own")
    run_sdrs("history", "--limit", "8")

    story.chapter("Two nodes are killed in the middle of a restore")
    names = sorted(node["id"] for node in json.loads(ask("node", "list")))
    restored = restore_while_two_nodes_die("unlucky", names[-2:])
    story.check(restored == wanted, f"step {STEPS} came back bit for bit: what was lost is computed from the rest")
    run_sdrs("up", "--dir", str(folder / "cluster"))
    wait_until(is_healthy, "the cluster to heal itself")

    story.chapter("A byte of a fragment that nobody reads is flipped on its disk")
    fragment = flip_a_byte(folder, "unlucky")
    story.tell(f"flipped one of {fragment.stat().st_size} bytes of {fragment.relative_to(folder)}")
    run_sdrs("scrub", "start", "--deep", "--job", "unlucky", "--wait", allow=(3,))
    wait_until(is_healthy, "repair to mend what the scrub found")
    run_sdrs("ckpt", "verify", "unlucky", str(STEPS))
    story.check(restored_digest("unlucky") == wanted, "the scrub found it, repair mended it, and the bytes are right")

    story.chapter("The same training as a job: it is killed, and later once more, together with its storage primary")
    ended = run_a_job_that_dies_twice(folder, "phoenix")
    run_sdrs("job", "why", "phoenix")
    run_sdrs("job", "attempts", "phoenix")
    story.check(ended == "succeeded", "it came back twice by itself, each time from its newest checkpoint")
    story.check(restored_digest("phoenix") == wanted, "and ended with the very weights of the undisturbed training")

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
