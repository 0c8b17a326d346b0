from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from sdrs_core.errors import InvalidArgumentError
from sdrs_scheduler.executors.executor import LaunchOrder
from sdrs_scheduler.executors.slurm.script import job_script, node_script, signal_script
from sdrs_scheduler.executors.slurm.settings import SlurmSettings
from sdrs_scheduler.jobs.job import Slot
from sdrs_scheduler.jobs.spec import Launch

FOLDER = Path("/shared/a b/x.1")
ORDER = LaunchOrder(
    "x.1", "python train.py", (Slot("n1", (0, 1)), Slot("n2", (0, 1))), Launch.PER_NODE, "/w", {"A": "b'$c\nd"}, 30.0
)


def options(order: LaunchOrder, settings: SlurmSettings | None = None) -> set[str]:
    text = job_script(order, FOLDER, settings or SlurmSettings())
    return {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")}


def test_an_order_asks_slurm_for_its_nodes_and_gpus_and_never_to_requeue() -> None:
    expected = {"--job-name=sdrs-x.1", "--no-requeue", "--nodes=2", "--nodelist=n1,n2", "--gres=gpu:2"}
    assert expected | {"--signal=B:TERM@30", '--output="/shared/a b/x.1/slurm.log"'} <= options(ORDER)


def test_what_is_not_asked_for_is_left_to_slurm() -> None:
    names = {option.partition("=")[0] for option in options(replace(ORDER, slots=(Slot("n1", ()),)))}
    assert not names & {"--gres", "--mem", "--time", "--exclusive", "--cpus-per-task", "--exclude", "--partition"}


def test_limits_are_rounded_up_and_those_of_time_leave_room_for_the_grace() -> None:
    order = replace(
        ORDER, memory_bytes_per_node=(1 << 20) + 1, time_limit_seconds=61.0, gpu_type="a100", exclusive=True
    )
    expected = {"--mem=2M", "--time=3", "--gres=gpu:a100:2", "--exclusive", "--exclude=n3"}
    assert expected <= options(replace(order, excluded_nodes=("n3",)))


def test_settings_of_the_platform_go_along() -> None:
    settings = SlurmSettings(partition="gpu", account="research", qos="high", options=("--constraint=ib",))
    assert {"--partition=gpu", "--account=research", "--qos=high", "--constraint=ib"} <= options(ORDER, settings)


@pytest.mark.parametrize("launch", Launch)
def test_scripts_are_bash(launch: Launch) -> None:
    order = replace(ORDER, launch=launch)
    for text in (job_script(order, FOLDER, SlurmSettings()), node_script(order, FOLDER), signal_script(order, FOLDER)):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    has_steps = "srun" in job_script(order, FOLDER, SlurmSettings())
    assert has_steps is (launch is Launch.PER_NODE)


def test_values_reach_the_environment_as_they_are() -> None:
    exports = [line for line in job_script(ORDER, FOLDER, SlurmSettings()).split("\n\n") if "export A=" in line]
    (text,) = exports
    text = text.partition("\nexport SDRS_NODE_COUNT")[0]
    shown = subprocess.run(["bash", "-c", f'{text}\nprintf %s "$A"'], capture_output=True, text=True, check=True).stdout
    assert shown == "b'$c\nd"


def test_nodes_with_different_numbers_of_gpus_are_refused() -> None:
    order = replace(ORDER, slots=(Slot("n1", (0,)), Slot("n2", (0, 1))))
    with pytest.raises(InvalidArgumentError, match="same number of GPUs"):
        job_script(order, FOLDER, SlurmSettings())
