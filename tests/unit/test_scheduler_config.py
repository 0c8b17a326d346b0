"""The scheduler's configuration, its own folder, and what Prometheus sees."""

from __future__ import annotations

import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from sdrs_core.errors import InvalidArgumentError, RefusedError
from sdrs_scheduler.app import settings_from
from sdrs_scheduler.config import load_config
from sdrs_scheduler.jobs.job import Attempt, Job, JobId, JobState, Slot, Verdict
from sdrs_scheduler.jobs.spec import FailureClass, JobSpec
from sdrs_scheduler.metrics import SchedulerMetrics, Seen, serve_metrics
from sdrs_scheduler.own_folder import OwnFolder


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "scheduler.toml"
    file.write_text(f'url = "sdrs://127.0.0.1:1"\ndata_dir = "{tmp_path}/data"\n{text}')
    return file


def test_a_file_with_url_and_folder_is_enough(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ""))
    assert config.local.enabled
    assert not config.slurm.enabled
    assert settings_from(config).lease_seconds == config.lease_seconds


@pytest.mark.parametrize(
    ("text", "named"), [("leese_seconds = 3", "leese_seconds"), ("[local]\ngpus_per_node = -1", "local.gpus_per_node")]
)
def test_an_error_names_the_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        load_config(write(tmp_path, text))


def test_settings_of_the_policy_are_known_by_name(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "[policy]\nhysteresis_seconds = 5\n"))
    assert settings_from(config).policy.hysteresis_seconds == 5
    with pytest.raises(InvalidArgumentError, match=r"policy\.histeresis"):
        settings_from(load_config(write(tmp_path, "[policy]\nhisteresis = 5\n")))


def test_a_folder_belongs_to_one_scheduler(tmp_path: Path) -> None:
    folder = OwnFolder(tmp_path)
    with pytest.raises(RefusedError, match="another scheduler runs"):
        OwnFolder(tmp_path)
    folder.announce({"ready": True})
    assert (tmp_path / "run.json").exists()
    folder.close()
    assert not (tmp_path / "run.json").exists()
    OwnFolder(tmp_path).close()


def test_metrics_tell_jobs_by_state_goodput_and_recoveries() -> None:
    job = Job(JobId("j"), JobSpec("j", "x"), "ann", 1000, JobState.RUNNING, slots=(Slot("n1", (0,)),))
    failed = Attempt(
        JobId("j"),
        1,
        job.slots,
        "local",
        scheduled_unix_ms=1000,
        running_unix_ms=2000,
        durable_unix_ms=5000,
        ended_unix_ms=8000,
        verdict=Verdict(FailureClass.HANG, ""),
    )
    again = replace(failed, number=2, scheduled_unix_ms=9000, running_unix_ms=10_000, ended_unix_ms=0, verdict=None)
    source = SchedulerMetrics(lambda: Seen(12_000, True, [(job, [failed, again])], 8))
    address, stop = serve_metrics(source, "127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    finally:
        stop()
    for line in (
        'sdrs_jobs{state="running"} 1.0',
        'sdrs_jobs{state="failed"} 0.0',
        'sdrs_jobs_gpu_seconds{what="lost"} 3.0',
        'sdrs_jobs_gpu_seconds{what="effective"} 5.0',
        'sdrs_jobs_recoveries_total{failure="hang"} 1.0',
        'sdrs_job_seconds{job="j",what="lost"} 3.0',
        'sdrs_job_recoveries_total{job="j"} 1.0',
        "sdrs_gpus 8.0",
        "sdrs_gpus_taken 1.0",
    ):
        assert line in text


def test_a_data_dir_that_takes_no_files_is_refused_in_words(tmp_path: Path) -> None:
    folder = OwnFolder(tmp_path)
    (tmp_path / "run.json.new").mkdir()
    with pytest.raises(RefusedError, match="takes no files"):
        folder.announce({"ready": True})
    folder.close()
