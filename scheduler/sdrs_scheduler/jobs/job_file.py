"""Job files: YAML, one or several documents, into checked job specs. Every error names file, line and field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sdrs_core.errors import InvalidArgumentError, NotFoundError
from sdrs_scheduler.jobs import job_fields as read
from sdrs_scheduler.jobs.job_fields import Table, section
from sdrs_scheduler.jobs.spec import (
    MAX_PRIORITY,
    Action,
    Backoff,
    CheckpointWish,
    FailureClass,
    FailurePolicy,
    HangWatch,
    JobSpec,
    Launch,
    Resources,
    Resume,
    Retry,
)
from sdrs_scheduler.jobs.yaml_places import MAX_FILE_CHARS, Place, read_documents, wrong
from sdrs_scheduler.policy.dag import find_cycle

MAX_NODES = 10_000
MAX_GPUS_PER_NODE = 64
MAX_CPUS_PER_NODE = 4096
MAX_RETRIES = 1_000_000
MAX_POLICIES = 100
MAX_GRACE_SECONDS = 86_400.0
EXECUTORS = ("local", "slurm")

RESOURCES: Table = {
    "nodes": ("nodes", read.whole(1, MAX_NODES)),
    "gpus_per_node": ("gpus_per_node", read.whole(0, MAX_GPUS_PER_NODE)),
    "exclusive": ("exclusive", read.flag),
    "gpu_type": ("gpu_type", read.name("GPU type")),
    "node_group": ("node_group", read.name("node group")),
    "cpus_per_node": ("cpus_per_node", read.whole(1, MAX_CPUS_PER_NODE)),
    "memory_per_node": ("memory_bytes_per_node", read.size),
}
CHECKPOINT: Table = {
    "history": ("history", read.name("history")),
    "pool": ("pool", read.name("pool")),
    "level": ("level", read.level),
    "keep": ("keep", read.whole(1, MAX_RETRIES)),
    "grace": ("grace_seconds", read.duration(most_seconds=MAX_GRACE_SECONDS)),
    "signal": ("signal", read.chosen({"TERM": "TERM", "USR1": "USR1", "SIGTERM": "TERM", "SIGUSR1": "USR1"})),
    "resume": ("resume", read.choice(Resume)),
    "interval": ("interval", lambda place: None if place.text == "auto" else read.duration(least_seconds=1)(place)),
}
BACKOFF: Table = {
    "initial": ("initial_seconds", read.duration()),
    "max": ("max_seconds", read.duration()),
}
BUDGETS: Table = {member.value: (member.value, read.whole(0, MAX_RETRIES)) for member in FailureClass}
RETRY: Table = {
    "max": ("max", read.whole(0, MAX_RETRIES)),
    "free_on": ("free_on", read.listed(read.choice(FailureClass))),
    "backoff": ("backoff", lambda place: _backoff(place)),
    "no_progress_limit": ("no_progress_limit", read.whole(0, MAX_RETRIES)),
    "budgets": ("budgets", section(BUDGETS)),
}
FAILURE_POLICY: Table = {
    "name": ("name", read.name("failure policy")),
    "match": ("match", read.pattern),
    "exit_codes": ("exit_codes", read.listed(read.whole(0, 255))),
    "action": ("action", read.choice(Action)),
}
HANG: Table = {
    "heartbeat": ("heartbeat_seconds", read.watch_time),
    "progress": ("progress_seconds", read.watch_time),
}
SECTIONS: Mapping[str, Table] = {"resources": RESOURCES, "checkpoint": CHECKPOINT, "retry": RETRY, "hang": HANG}


def job_table(now_unix: float) -> Table:
    return {
        "name": ("name", read.name("job")),
        "command": ("command", read.command),
        "queue": ("queue", read.name("queue")),
        "priority": ("priority", read.whole(0, MAX_PRIORITY)),
        "deadline": ("deadline_unix", read.deadline(now_unix)),
        "estimate": ("estimate_seconds", read.duration(least_seconds=1)),
        "time_limit": ("time_limit_seconds", read.duration(least_seconds=1)),
        "resources": ("resources", lambda place: Resources(**section(RESOURCES)(place))),
        "checkpoint": ("checkpoint", _checkpoint),
        "retry": ("retry", _retry),
        "failure_policies": ("failure_policies", _policies),
        "hang": ("hang", lambda place: HangWatch(**section(HANG)(place))),
        "depends_on": ("depends_on", read.listed(read.name("job"))),
        "executor": ("executor", read.chosen({executor: executor for executor in EXECUTORS})),
        "launch": ("launch", read.choice(Launch)),
        "workdir": ("workdir", read.text),
        "environment": ("environment", read.variables),
        "preemptible": ("preemptible", read.flag),
        "tenant": ("tenant", read.name("tenant")),
    }


@dataclass(frozen=True, slots=True)
class JobDocument:
    """A job, and in which line which field stands: what only the cluster can judge is told with its line, too."""

    spec: JobSpec
    source: str
    lines: Mapping[str, int]

    def wrong(self, path: str, what: str) -> InvalidArgumentError:
        line = self.lines.get(path) or self.lines.get(path.partition(".")[0].partition("[")[0]) or self.lines[""]
        return wrong(self.source, line, path, what)


def parse_documents(text: str, source: str, now_unix: float) -> list[JobDocument]:
    """The jobs of a file; InvalidArgumentError "FILE:LINE: field.path: what, what to do"."""
    places = read_documents(text, source)
    if not places:
        raise wrong(source, 1, "", "there is no job in it: see `sdrs job init`")
    documents = [JobDocument(_spec(place, now_unix), source, _lines(place)) for place in places]
    _check_together(documents)
    return documents


def read_job_file(path: Path, now_unix: float) -> list[JobDocument]:
    try:
        with open(path, "rb") as file:
            # One byte more than is allowed in any encoding of that many characters: never the whole of a huge file.
            content = file.read(4 * MAX_FILE_CHARS + 1)
    except FileNotFoundError:
        raise NotFoundError(f"{path} does not exist: write one with `sdrs job init {path}`") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(content) > MAX_FILE_CHARS:
            text = " " * (MAX_FILE_CHARS + 1)  # too long in any case, and cut in the middle of a character
        else:
            line = content.count(b"\n", 0, error.start) + 1
            raise wrong(str(path), line, "", "this is not text in UTF-8: is it a job file?") from None
    return parse_documents(text, str(path), now_unix)


def _spec(place: Place, now_unix: float) -> JobSpec:
    values = section(job_table(now_unix), SECTIONS)(place)
    for required, example in (("name", "name: llm-7b"), ("command", "command: python train.py")):
        if required not in values:
            raise wrong(place.source, place.line, required, f"is missing: every job has one, as {example}")
    return JobSpec(**values)


def _checkpoint(place: Place) -> CheckpointWish:
    values = section(CHECKPOINT)(place)
    if "interval" in values:
        interval = values.pop("interval")
        values |= {"interval_auto": True} if interval is None else {"interval_seconds": interval}
    return CheckpointWish(**values)


def _retry(place: Place) -> Retry:
    values = section(RETRY)(place)
    if "budgets" in values:
        values["budgets"] = {FailureClass(name): count for name, count in values["budgets"].items()}
    return Retry(**values)


def _backoff(place: Place) -> Backoff:
    values = section(BACKOFF)(place)
    backoff = Backoff(**values)
    if backoff.initial_seconds > backoff.max_seconds:
        if "max_seconds" in values:
            raise place.wrong("initial is longer than max: make it shorter")
        return Backoff(backoff.initial_seconds, backoff.initial_seconds)
    return backoff


def _policies(place: Place) -> tuple[FailurePolicy, ...]:
    policies: list[FailurePolicy] = []
    for index, item in enumerate(place.items(MAX_POLICIES)):
        values = {"name": f"policy-{index + 1}"} | section(FAILURE_POLICY)(item)
        if "action" not in values:
            raise item.wrong(f"has no action: give {', '.join(action.value for action in Action)}")
        if "match" not in values and not values.get("exit_codes"):
            raise item.wrong("says not of which failures: give match or exit_codes")
        if any(values["name"] == policy.name for policy in policies):
            raise item.wrong(f'another one is named "{values["name"]}": give each a name of its own')
        policies.append(FailurePolicy(**values))
    return tuple(policies)


def _lines(place: Place) -> dict[str, int]:
    """Of what may turn out wrong at the cluster: fields of the job, and of what is one level below."""
    lines = {"": place.line}
    for name, key, value in place.fields(read.MAX_LIST_ITEMS):
        lines[name] = key.line
        if name in SECTIONS:
            lines |= {below.path: below_key.line for _, below_key, below in value.fields(read.MAX_LIST_ITEMS)}
        elif name == "depends_on":
            lines |= {item.path: item.line for item in value.items(read.MAX_LIST_ITEMS)}
    return lines


def _check_together(documents: Sequence[JobDocument]) -> None:
    """Jobs of one file: names and histories are their own, and nobody waits for himself in the end."""
    by_name: dict[str, JobDocument] = {}
    histories: dict[str, str] = {}
    for document in documents:
        spec = document.spec
        if spec.name in by_name:
            first = by_name[spec.name].lines["name"]
            raise document.wrong("name", f'"{spec.name}" is the job in line {first} already: give it another name')
        if spec.history in histories:
            path = "checkpoint.history" if spec.checkpoint.history else "name"
            owner = histories[spec.history]
            raise document.wrong(path, f'the history "{spec.history}" is that of job {owner} already: give it another')
        by_name[spec.name] = document
        histories[spec.history] = spec.name
    cycle = find_cycle({name: document.spec.depends_on for name, document in by_name.items()})
    if cycle is not None:
        document = by_name[cycle[0]]
        path = f"depends_on[{document.spec.depends_on.index(cycle[1])}]"
        what = "it waits for itself" if len(cycle) == 2 else f"they wait for each other: {' → '.join(cycle)}"
        raise document.wrong(path, f"{what}: none would ever start")
