"""`sdrs job init`: what it writes is a job that can be submitted, and a script that runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sdrs_scheduler.jobs.job_file import parse_documents, read_job_file
from sdrs_scheduler.jobs.spec import JobSpec, Launch
from sdrs_scheduler.jobs.templates import TEMPLATES
from tests.support.job_program import JobProgram


@pytest.fixture
def program() -> JobProgram:
    return JobProgram("sdrs://127.0.0.1:1")  # nobody is asked


def parsed(text: str) -> list[JobSpec]:
    return [document.spec for document in parse_documents(text, "job.yaml", 0.0)]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_template_is_a_job_file_and_its_script_compiles(kind: str) -> None:
    template = TEMPLATES[kind]
    specs = parsed(template.job_text("mine"))
    assert all(spec.name.startswith("mine") for spec in specs)
    assert all("train.py" in str(spec.command) for spec in specs)
    compile(template.script, "train.py", "exec")


@pytest.mark.parametrize("kind", TEMPLATES)
def test_what_a_template_shows_in_comments_is_right_too(kind: str) -> None:
    lines = TEMPLATES[kind].job_text("mine").splitlines()
    shown = [line.replace("# ", "", 1) if _is_field(line) else line for line in lines]
    assert shown != lines or kind == "sweep"
    assert parsed("\n".join(shown))


def _is_field(line: str) -> bool:
    words = line.strip().split()
    return len(words) > 2 and words[0] == "#" and words[1].endswith(":") and words[1] != "it;"


def test_each_is_for_its_launcher() -> None:
    specs = {kind: parsed(one.job_text("a")) for kind, one in TEMPLATES.items()}
    assert specs["mpi"][0].launch is Launch.ONCE
    assert "SDRS_HOSTFILE" in specs["mpi"][0].command
    assert specs["torchrun"][0].launch is Launch.PER_NODE
    assert specs["slurm"][0].executor == "slurm"
    assert len({spec.environment["LR"] for spec in specs["sweep"]}) == 3
    assert "OMPI_COMM_WORLD_" in TEMPLATES["mpi"].script


def test_the_contract_goes_to_other_nodes_by_the_mpi_command(tmp_path: Path) -> None:
    (spec,) = parsed(TEMPLATES["mpi"].job_text("a"))
    (tmp_path / "mpirun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "mpirun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SDRS_HOSTFILE": "/the/hosts", "SDRS_JOB_ID": "a-1"}
    assert isinstance(spec.command, str)
    done = subprocess.run(
        ["bash", "-c", spec.command], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert "--hostfile /the/hosts" in done.stdout
    assert "-x SDRS_JOB_ID" in done.stdout
    assert done.stdout.rstrip().endswith("python train.py")


def test_init_writes_both_files_and_never_over_others(
    program: JobProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "sdrs job submit llm-7b.yaml" in program.run("job", "init", "llm-7b.yaml", "--template", "torchrun")
    assert [document.spec.name for document in read_job_file(Path("llm-7b.yaml"), 0.0)] == ["llm-7b"]
    Path("train.py").write_text("mine")
    assert "train.py exists: pass --force" in program.run("job", "init", "other.yaml", expect=1)
    assert not Path("other.yaml").exists()
    made = program.json("job", "init", "other.yaml", "--no-script")
    assert made == {"template": "python", "files": ["other.yaml"]}
    assert Path("train.py").read_text() == "mine"
    program.run("job", "init", "other.yaml", "--force")
    assert "current_job" in Path("train.py").read_text()
    program.run("job", "init", "jobs/what is it.yaml")
    assert read_job_file(Path("jobs/what is it.yaml"), 0.0)[0].spec.name == "what-is-it"
    program.run("job", "init", "--no-script")
    assert read_job_file(Path("job.yaml"), 0.0)[0].spec.name == "my-job"
    assert "nothing" in program.run("job", "init", "x.yaml", "--template", "nothing", expect=2)
