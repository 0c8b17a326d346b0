"""The trainings that `sdrs job init` writes, in real processes: outside of a job, inside of one, and going on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sdrs_scheduler.jobs.templates import TEMPLATES
from tests.support.cluster import LocalCluster, free_port


def train(folder: Path, kind: str, steps: int, **environment: str) -> str:
    script = folder / f"{kind}-{steps}.py"
    script.write_text(
        TEMPLATES[kind].script.replace("time.sleep(0.1)", "pass").replace("STEPS = 600", f"STEPS = {steps}")
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SDRS_")}
    done = subprocess.run(
        [sys.executable, str(script)], env=clean | environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def contract(cluster: LocalCluster, name: str, attempt: int, resume_step: str) -> dict[str, str]:
    return {
        "SDRS_JOB_ID": f"{name}-1a2b",
        "SDRS_JOB_NAME": name,
        "SDRS_ATTEMPT": str(attempt),
        "SDRS_RESUME_STEP": resume_step,
        "SDRS_GRACE_SECONDS": "60",
        "SDRS_URL": cluster.url,
        "SDRS_HISTORY": name,
    }


def steps(cluster: LocalCluster, name: str) -> list[int]:
    with cluster.connect() as connected:
        return [save.step for save in connected.checkpoints(name).list()]


def test_the_plain_one_trains_outside_of_a_job_too(tmp_path: Path) -> None:
    assert "step 600 loss 0.000000" in train(tmp_path, "python", 600)


def test_the_plain_one_goes_on_as_if_nothing_had_been(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    whole = train(tmp_path, "python", 150)
    train(tmp_path, "python", 100, **contract(shared_cluster, "plain", 1, ""))
    rest = train(tmp_path, "python", 150, **contract(shared_cluster, "plain", 2, "100"))
    assert "goes on from step 100 (attempt 2)" in rest
    assert rest.splitlines()[-1] == whole.splitlines()[-1]
    assert steps(shared_cluster, "plain") == [150, 100]


def test_what_ranks_of_mpi_have_saved_ranks_of_torchrun_go_on_from(
    shared_cluster: LocalCluster, tmp_path: Path
) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    mpi = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    first = train(tmp_path, "mpi", 50, **place, **mpi, **contract(shared_cluster, "ranks", 1, ""))
    assert "step 50 loss" in first
    rest = train(tmp_path, "torchrun", 100, **place, **torchrun, **contract(shared_cluster, "ranks", 2, "50"))
    assert "goes on from step 50 (attempt 2)" in rest
    assert "step 100 loss" in rest
    assert steps(shared_cluster, "ranks") == [100, 50]
