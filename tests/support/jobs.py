"""This process as a start of a scheduled job."""

from __future__ import annotations

import pytest

import sdrs

_LAUNCHERS = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


def enter_job(
    monkeypatch: pytest.MonkeyPatch, url: str, name: str, attempt: int, resume_step: int | None = None
) -> None:
    for variable in _LAUNCHERS:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SDRS_URL", url)
    monkeypatch.setenv("SDRS_JOB_ID", f"{name}-ab12")
    monkeypatch.setenv("SDRS_JOB_NAME", name)
    monkeypatch.setenv("SDRS_ATTEMPT", str(attempt))
    monkeypatch.setenv("SDRS_RESUME_STEP", "" if resume_step is None else str(resume_step))


def leave_job() -> None:
    """Its thread ends, and signals mean what they meant before."""
    job = sdrs.current_job()
    if job:
        job.close()
