"""The story of ``make demo``: a cluster on this machine, a trainer killed in mid-save, and nothing lost.

Everything is real: daemons in processes of their own, kill -9, fsynced files. It cleans up after itself and exits 0 if
every claim it makes was seen to hold.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
SDRS = Path(sys.executable).with_name("sdrs")
STEPS, SAVE_EVERY, BALLAST_MIB = 40, 10, 512
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


def sdrs(*arguments: str, allow: tuple[int, ...] = (0,)) -> str:
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
    command += ["--save-every", str(SAVE_EVERY), "--ballast-mib", str(BALLAST_MIB)]
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


def wait_until_bytes_arrive(folder: Path) -> None:
    """Until a node has begun to write a fragment that is not in place yet: the middle of a save."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        for file in folder.glob("cluster/node-*/disk-*/tmp/*"):
            try:
                if file.stat().st_blocks:
                    return
            except FileNotFoundError:
                continue
    raise SystemExit("no bytes of the save arrived")


def run_to_the_end(job: str) -> tuple[str, list[str]]:
    """The digest of the final state, and all lines."""
    process = trainer(job)
    lines = list(lines_of(process))
    if process.wait() != 0:
        raise SystemExit(f"the trainer of {job} failed with {process.returncode}")
    return digest_in(lines[-1]), lines


def tell_the_story(folder: Path) -> None:
    story.chapter("A cluster on this machine: one controller, three storage nodes")
    told = sdrs("up", "--nodes", "3", "--dir", str(folder / "cluster"), "--port", "0")
    found = re.search(r"sdrs://[\w.:]+", told)
    assert found, told
    os.environ["SDRS_URL"] = found.group()  # the trainers find the cluster by it

    story.chapter("A model trains undisturbed; every save is fsynced on a node before it counts")
    wanted, _ = run_to_the_end("undisturbed")

    story.chapter("The same training, but kill -9 strikes in the middle of a save")
    process = trainer("unlucky")
    digests: dict[int, str] = {}
    for line in lines_of(process):
        if line.startswith("saving step"):
            step = int(line.split()[2])
            digests[step] = digest_in(line)
            if step == 2 * SAVE_EVERY:
                wait_until_bytes_arrive(folder)
                process.kill()
                story.tell(f"kill -9 {process.pid}   (bytes of step {step} are arriving at a node)")
                break
    process.wait()

    story.chapter("Nothing half-saved is visible")
    listed = sdrs("-o", "json", "ckpt", "list", "unlucky")
    story.check(f'"step": {SAVE_EVERY}' in listed, f"step {SAVE_EVERY}, which was acknowledged, is there")
    story.check(f'"step": {2 * SAVE_EVERY}' not in listed, f"step {2 * SAVE_EVERY}, which was cut off, is not")

    story.chapter("Start the trainer again: it resumes by itself, bit for bit")
    final, lines = run_to_the_end("unlucky")
    resumed = next(line for line in lines if line.startswith("resume"))
    story.check(digest_in(resumed) == digests[SAVE_EVERY], f"the restored state is step {SAVE_EVERY}, every bit of it")
    story.check(final == wanted, "the killed training ends with the very weights of the undisturbed one")

    story.chapter("What is stored is checked where it lies")
    sdrs("ckpt", "list", "unlucky")
    sdrs("ckpt", "verify", "unlucky", str(STEPS))
    sdrs("status")

    story.chapter("The end: the cluster stops, the demo cleans up")
    sdrs("down", "--dir", str(folder / "cluster"))


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
