"""Job files: what they mean, and that what is wrong is told with file, line and field."""

from __future__ import annotations

import json
import textwrap
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.errors import InvalidArgumentError, NotFoundError
from sdrs_scheduler.jobs.job_file import parse_documents, read_job_file
from sdrs_scheduler.jobs.spec import Action, FailureClass, FailurePolicy, JobSpec, Launch, Resume
from sdrs_scheduler.jobs.yaml_places import MAX_FILE_CHARS

NOW_UNIX = 1_800_000_000.0
EXAMPLE = """\
name: llm-7b
queue: research
priority: 50
resources: {nodes: 2, gpus_per_node: 8, exclusive: false}
command: torchrun --nproc-per-node=8 train.py
checkpoint: {pool: prod, level: L3, keep: 5, grace: 120s, resume: latest-verified}
retry: {max: 3, free_on: [preempted, node_lost, storage], backoff: {initial: 10s, max: 10m}, no_progress_limit: 3}
failure_policies:
  - {name: ecc, match: "uncorrectable ECC", action: exclude_node}
  - {name: oom, match: "CUDA out of memory", action: fail}
depends_on: [prep]
executor: local        # or slurm
"""


def parse(text: str) -> list[JobSpec]:
    return [document.spec for document in parse_documents(text, "llm.yaml", NOW_UNIX)]


def one(fields: str) -> JobSpec:
    (spec,) = parse(f"name: a\ncommand: x\n{textwrap.dedent(fields)}")
    return spec


def complaint(text: str) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        parse(text)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_example_is_read_as_it_stands() -> None:
    (spec,) = parse(EXAMPLE)
    assert (spec.name, spec.queue, spec.priority, spec.executor) == ("llm-7b", "research", 50, "local")
    assert spec.command == "torchrun --nproc-per-node=8 train.py"
    assert (spec.resources.nodes, spec.resources.gpus_per_node, spec.resources.exclusive) == (2, 8, False)
    assert (spec.checkpoint.pool, spec.checkpoint.level, spec.checkpoint.keep) == ("prod", "L3", 5)
    assert (spec.checkpoint.grace_seconds, spec.checkpoint.resume) == (120.0, Resume.LATEST_VERIFIED)
    assert (spec.retry.max, spec.retry.no_progress_limit) == (3, 3)
    assert spec.retry.free_on == (FailureClass.PREEMPTED, FailureClass.NODE_LOST, FailureClass.STORAGE)
    assert (spec.retry.backoff.initial_seconds, spec.retry.backoff.max_seconds) == (10.0, 600.0)
    assert spec.failure_policies == (
        FailurePolicy("ecc", Action.EXCLUDE_NODE, "uncorrectable ECC"),
        FailurePolicy("oom", Action.FAIL, "CUDA out of memory"),
    )
    assert spec.depends_on == ("prep",)


def test_a_name_and_a_command_are_enough() -> None:
    assert parse("name: a\ncommand: x") == [JobSpec("a", "x")]


def test_every_other_field_is_read() -> None:
    spec = one(
        """\
        estimate: 2h
        time_limit: 1d
        resources:
          gpu_type: a100
          node_group: rack-1
          cpus_per_node: 16
          memory_per_node: 64GiB
          gpus_per_node: 0
        checkpoint: {history: shared, signal: SIGUSR1, interval: 90, grace: 0}
        retry: {budgets: {oom: 0, crash: 7}}
        failure_policies:
          - {exit_codes: [3, 4], action: roll_back}
        hang: {heartbeat: off, progress: 10m}
        launch: once
        workdir: /data
        environment: {LR: 1.10, DEBUG: yes, EMPTY: ""}
        preemptible: no
        tenant: chemistry
        """
    )
    assert (spec.estimate_seconds, spec.time_limit_seconds) == (7200.0, 86_400.0)
    assert (spec.resources.gpu_type, spec.resources.node_group) == ("a100", "rack-1")
    assert (spec.resources.cpus_per_node, spec.resources.memory_bytes_per_node) == (16, 64 << 30)
    assert spec.resources.gpus == 0
    assert (spec.history, spec.checkpoint.signal, spec.checkpoint.interval_seconds) == ("shared", "USR1", 90.0)
    assert not spec.checkpoint.interval_auto
    assert spec.retry.budgets == {FailureClass.OUT_OF_MEMORY: 0, FailureClass.CRASH: 7}
    assert spec.failure_policies == (FailurePolicy("policy-1", Action.ROLL_BACK, "", (3, 4)),)
    assert (spec.hang.heartbeat_seconds, spec.hang.progress_seconds) == (0.0, 600.0)
    assert (spec.launch, spec.workdir, spec.preemptible, spec.tenant) == (Launch.ONCE, "/data", False, "chemistry")
    assert spec.environment == {"LR": "1.10", "DEBUG": "yes", "EMPTY": ""}


def test_the_interval_may_be_left_to_the_scheduler() -> None:
    wish = one("checkpoint: {interval: auto}").checkpoint
    assert (wish.interval_auto, wish.interval_seconds) == (True, 0.0)


@pytest.mark.parametrize(
    ("text", "unix"),
    [
        ("12h", NOW_UNIX + 12 * 3600),
        ("2030-01-01T00:00:00Z", datetime(2030, 1, 1, tzinfo=UTC).timestamp()),
        ("2030-01-01 01:00+01:00", datetime(2030, 1, 1, tzinfo=UTC).timestamp()),
    ],
)
def test_a_deadline_is_a_time_or_a_duration_from_now_on(text: str, unix: float) -> None:
    assert one(f"deadline: {text}").deadline_unix == unix


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400), ("1w", 604_800), ("45", 45), ("1.5h", 5400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert one(f"estimate: {text}").estimate_seconds == seconds


@pytest.mark.parametrize(("text", "count"), [("64GiB", 64 << 30), ("500MB", 500_000_000), ("1.5 KiB", 1536), ("7", 7)])
def test_sizes(text: str, count: int) -> None:
    assert one(f"resources: {{memory_per_node: {text}}}").resources.memory_bytes_per_node == count


def test_a_command_may_be_words() -> None:
    assert parse("name: a\ncommand: [python, train.py, --lr, 1e-3, '']")[0].command == (
        "python",
        "train.py",
        "--lr",
        "1e-3",
        "",
    )


def test_several_documents_are_several_jobs_and_empty_ones_none() -> None:
    specs = parse("---\nname: prep\ncommand: x\n---\n# nothing\n---\nname: llm\ncommand: y\ndepends_on: [prep]\n---\n")
    assert [spec.name for spec in specs] == ["prep", "llm"]


def test_an_alias_repeats_a_value_and_a_longer_initial_backoff_raises_the_default_limit() -> None:
    spec = one("estimate: &t 1h\ntime_limit: *t\nretry: {backoff: {initial: 20m}}")
    assert spec.time_limit_seconds == 3600.0
    assert spec.retry.backoff.max_seconds == 1200.0


JOB = "name: a\ncommand: x\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # The shape of a file.
        ("", "llm.yaml:1: there is no job in it"),
        ("# only this\n", "llm.yaml:1: there is no job in it"),
        ("---\n---\n", "llm.yaml:1: there is no job in it"),
        ("just text", 'llm.yaml:1: "just text" is not a mapping'),
        ("- a\n- b", "llm.yaml:1: a list is not a mapping"),
        ("name: a\n\tcommand: x", "llm.yaml:2: a tab: YAML is indented with spaces"),
        ("name: a\n\n\n[", "llm.yaml:4: this is not YAML"),
        ("name: 'a", "llm.yaml:1: this is not YAML"),
        ("name: a\ncommand: python: x", "llm.yaml:2: this is not YAML: mapping values are not allowed here: quote"),
        ("name: a\0", "llm.yaml:1: the character '\\x00' does not belong into YAML"),
        ("name: a\ncommand: \x07", "llm.yaml:2: the character '\\x07'"),
        ('name: "\\UFFFFFFFF"', "llm.yaml:1: this is not YAML"),
        ('name: "\\U00110000"', "llm.yaml:1: this is not YAML"),
        (f"%YAML 1.{'9' * 5000}\n---\nname: a", "llm.yaml:1: this is not YAML"),
        ("name: *nobody", "llm.yaml:1: this is not YAML: found undefined alias"),
        ("name: !!python/object:os.system x", "llm.yaml:1: the tag"),
        ("a: [" + "[" * 3000, "llm.yaml:1: nested deeper than 16 levels"),
        ("x" * (MAX_FILE_CHARS + 1), "llm.yaml:1: the file is larger than 128 KiB"),
        ("a: &a x\nb: [" + ", ".join(["*a"] * 200) + "]", "llm.yaml:2: more than 100 aliases"),
        ("name: [" + "a," * 20_000 + "]", "llm.yaml:1: more than 10000 values"),
        (JOB + "<<: {queue: q}", "llm.yaml:3: <<: fields of other mappings cannot be merged"),
        (JOB + "? [a]\n: b", "llm.yaml:3: a list is no name of a field"),
        (JOB + "~: b", "llm.yaml:3: an empty value is no name of a field"),
        # Fields.
        ("command: x", "llm.yaml:1: name: is missing"),
        ("---\nname: a\ncommand: x\n---\nname: b\n", "llm.yaml:5: command: is missing"),
        (JOB + "prioritty: 5", "llm.yaml:3: prioritty: is not known here: did you mean priority?"),
        (JOB + "gpus_per_node: 5", "llm.yaml:3: gpus_per_node: is not known here: it belongs under resources"),
        (JOB + "zzzzzzzz: 5", "llm.yaml:3: zzzzzzzz: is not known here: give name, command,"),
        (JOB + "resources:\n  gpus: 8", "llm.yaml:4: resources.gpus: is not known here: did you mean gpus_per_node?"),
        (JOB + "queue: a\nqueue: b", "llm.yaml:4: queue: is given twice, first in line 3"),
        (JOB + "queue:", "llm.yaml:3: queue: is empty: give a value or leave the field out"),
        ("name: a b\ncommand: x", "llm.yaml:1: name: job 'a b' is not a valid name"),
        ("name: [a]\ncommand: x", "llm.yaml:1: name: a list is not text"),
        ("name: a\ncommand: ''", "llm.yaml:2: command: is empty"),
        ("name: a\ncommand: []", "llm.yaml:2: command: names no program"),
        ("name: a\ncommand: {a: b}", "llm.yaml:2: command: a mapping is not a list"),
        ("name: a\ncommand: [x, [y]]", "llm.yaml:2: command[1]: a list is not text"),
        ('name: a\ncommand: "x\\0"', "llm.yaml:2: command: holds a zero byte"),
        (JOB + "queue: no/body", "llm.yaml:3: queue: queue 'no/body' is not a valid name"),
        (
            JOB + "resources:\n  nodes: 2\n  gpus_per_node: eight",
            'llm.yaml:5: resources.gpus_per_node: "eight" is not a whole number: give 0 to 64',
        ),
        (JOB + "resources: {gpus_per_node: 65}", "llm.yaml:3: resources.gpus_per_node: 65 is out of range"),
        (JOB + "resources: {nodes: 0}", "llm.yaml:3: resources.nodes: 0 is out of range: give 1 to 10000"),
        (JOB + "resources: {nodes: -1}", "llm.yaml:3: resources.nodes: -1 is out of range"),
        (JOB + "resources: {nodes: 1.5}", 'llm.yaml:3: resources.nodes: "1.5" is not a whole number'),
        (JOB + "resources: {nodes: 010}", 'llm.yaml:3: resources.nodes: "010" is not a whole number'),
        (JOB + "resources: {nodes: '2'}", 'llm.yaml:3: resources.nodes: "2" is text: write 2 without quotes'),
        (JOB + "resources: {nodes: [2]}", "llm.yaml:3: resources.nodes: a list is not a whole number"),
        (JOB + "resources: {nodes: " + "9" * 5000 + "}", "llm.yaml:3: resources.nodes: "),
        (JOB + "resources: 2", 'llm.yaml:3: resources: "2" is not a mapping'),
        (JOB + "resources: {exclusive: maybe}", 'llm.yaml:3: resources.exclusive: "maybe" is neither true nor false'),
        (JOB + "resources: {memory_per_node: 64 gigs}", 'llm.yaml:3: resources.memory_per_node: "64 gigs" is not a s'),
        (JOB + "resources: {memory_per_node: 0}", "llm.yaml:3: resources.memory_per_node: "),
        (JOB + "priority: 101", "llm.yaml:3: priority: 101 is out of range: give 0 to 100"),
        (JOB + "priority: -1", "llm.yaml:3: priority: -1 is out of range: give 0 to 100"),
        (JOB + "checkpoint: {level: L4}", 'llm.yaml:3: checkpoint.level: "L4" is not a level: give L1, L2 or L3'),
        (JOB + "checkpoint: {keep: 0}", "llm.yaml:3: checkpoint.keep: 0 is out of range"),
        (JOB + "checkpoint: {grace: soon}", 'llm.yaml:3: checkpoint.grace: "soon" is not a duration: give 90s, 10m'),
        (JOB + "checkpoint: {grace: -5s}", 'llm.yaml:3: checkpoint.grace: "-5s" is not a duration'),
        (JOB + "checkpoint: {grace: 2d}", 'llm.yaml:3: checkpoint.grace: "2d" is out of range: give 0s to 1d'),
        (JOB + "checkpoint: {interval: often}", 'llm.yaml:3: checkpoint.interval: "often" is not a duration'),
        (JOB + "checkpoint: {resume: newest}", 'llm.yaml:3: checkpoint.resume: "newest" does not exist: give latest-v'),
        (JOB + "checkpoint: {signal: KILL}", 'llm.yaml:3: checkpoint.signal: "KILL" does not exist: give TERM'),
        (JOB + "deadline: tomorrow", 'llm.yaml:3: deadline: "tomorrow" is no time'),
        (JOB + "deadline: 2030-01-01T00:00:00", 'llm.yaml:3: deadline: "2030-01-01T00:00:00" has no time zone'),
        (JOB + "deadline: 2020-01-01T00:00:00Z", 'llm.yaml:3: deadline: "2020-01-01T00:00:00Z" is over already'),
        (
            JOB + "retry: {free_on: [preemptd]}",
            'llm.yaml:3: retry.free_on[0]: "preemptd" does not exist: did you mean p',
        ),
        (JOB + "retry: {free_on: [oom, oom]}", 'llm.yaml:3: retry.free_on[1]: "oom" is listed twice'),
        (JOB + "retry: {free_on: oom}", 'llm.yaml:3: retry.free_on: "oom" is not a list'),
        (JOB + "retry: {max: -1}", "llm.yaml:3: retry.max: -1 is out of range"),
        (JOB + "retry: {budgets: {memory: 3}}", "llm.yaml:3: retry.budgets.memory: is not known here"),
        (JOB + "retry: {backoff: {initial: 5m, max: 1m}}", "llm.yaml:3: retry.backoff: initial is longer than max"),
        (
            JOB + 'failure_policies:\n  - {match: "(", action: fail}',
            'llm.yaml:4: failure_policies[0].match: "(" is not a regular expression',
        ),
        (
            JOB + "failure_policies: [{match: x, action: reboot}]",
            'llm.yaml:3: failure_policies[0].action: "reboot" does not exist: give restart, requeue, exclude_node',
        ),
        (JOB + "failure_policies: [{match: x}]", "llm.yaml:3: failure_policies[0]: has no action"),
        (JOB + "failure_policies: [{action: fail}]", "llm.yaml:3: failure_policies[0]: says not of which failures"),
        (
            JOB + "failure_policies: [{exit_codes: [256], action: fail}]",
            "failure_policies[0].exit_codes[0]: 256 is out",
        ),
        (
            JOB + "failure_policies:\n- {name: a, match: x, action: fail}\n- {name: a, match: y, action: fail}",
            'llm.yaml:5: failure_policies[1]: another one is named "a"',
        ),
        (JOB + "executor: kubernetes", 'llm.yaml:3: executor: "kubernetes" does not exist: give local or slurm'),
        (JOB + "launch: twice", 'llm.yaml:3: launch: "twice" does not exist: give per_node or once'),
        (JOB + "environment: {1A: b}", "llm.yaml:3: environment.1A: is no name of a variable"),
        (JOB + "environment: {SDRS_ATTEMPT: 3}", "llm.yaml:3: environment.SDRS_ATTEMPT: is set by the scheduler"),
        (JOB + "environment: {A: [b]}", "llm.yaml:3: environment.A: a list is not text"),
        # Jobs of one file.
        (JOB + "depends_on: [a]", "llm.yaml:3: depends_on[0]: it waits for itself"),
        (
            JOB + "depends_on: [b]\n---\nname: b\ncommand: x\ndepends_on: [c]\n---\n"
            "name: c\ncommand: x\ndepends_on: [a]",
            "llm.yaml:3: depends_on[0]: they wait for each other: a → b → c → a: none would ever start",
        ),
        (JOB + "---\n" + JOB, 'llm.yaml:4: name: "a" is the job in line 1 already'),
        (
            JOB + "---\nname: b\ncommand: x\ncheckpoint:\n  history: a\n",
            'llm.yaml:7: checkpoint.history: the history "a" is that of job a already',
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_what_is_wrong_is_told_with_file_line_and_field(text: str, told: str) -> None:
    assert told in complaint(text)


def test_a_bomb_of_aliases_costs_nothing() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 11)]
    assert "a0: is not known here" in complaint("\n".join(lines))
    assert "is not text" in complaint("name: &a [*a]\ncommand: x")


def test_a_file_is_read_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for mark in (b"", b"\xef\xbb\xbf"):
        path.write_bytes(mark + EXAMPLE.encode())
        assert [document.spec.name for document in read_job_file(path, time.time())] == ["llm-7b"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"name: a\n\xff\xfe\x00", "job.yaml:2: this is not text in UTF-8"),
        (b"\x7fELF\x02\x01\x01\0\0", "job.yaml:1: the character"),
        (b"#" * (5 << 20), "job.yaml:1: the file is larger than 128 KiB"),
        ("ä".encode() * (3 << 20), "job.yaml:1: the file is larger than 128 KiB"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidArgumentError) as caught:
        read_job_file(path, NOW_UNIX)
    assert told in caught.value.message


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="sdrs job init"):
        read_job_file(tmp_path / "nothing.yaml", NOW_UNIX)


def test_what_the_cluster_finds_wrong_has_its_line_too() -> None:
    (document,) = parse_documents(EXAMPLE.replace("[prep]", "\n- prep\n- other"), "llm.yaml", NOW_UNIX)
    assert document.wrong("depends_on[1]", "x").message == "llm.yaml:13: depends_on[1]: x"
    assert document.wrong("checkpoint.pool", "x").message == "llm.yaml:6: checkpoint.pool: x"
    assert document.wrong("failure_policies", "x").message == "llm.yaml:8: failure_policies: x"
    assert document.wrong("retry.budgets.oom", "x").message == "llm.yaml:7: retry.budgets.oom: x"


def check_outcome(text: str) -> None:
    message = ""
    try:
        assert all(isinstance(spec, JobSpec) for spec in parse(text))
    except InvalidArgumentError as error:
        message = error.message
    if message:
        assert message.startswith("llm.yaml:")
        assert len(message.splitlines()) == 1


_WORDS = st.sampled_from(
    [
        *("name", "command", "resources", "nodes", "checkpoint", "interval", "retry", "failure_policies", "match"),
        *("depends_on", "environment", "deadline", "auto", "10m", "-1", "~", "true", "2030-01-01", "a", "[", "]"),
        *(
            "{",
            "}",
            ":",
            ": ",
            ",",
            "- ",
            "\n",
            "\n  ",
            "---\n",
            "&x ",
            "*x",
            "!!int ",
            '"',
            "'",
            "|",
            "\t",
            "? ",
            "<<",
        ),
        *("? ", "<<", "\\U", "FFFFFFFF", "%YAML ", "1.", "[[a]", "(?", "9" * 5000, "\x85", "\u2028"),
    ]
)


@settings(max_examples=600, deadline=None)
@given(st.one_of(st.text(), st.lists(_WORDS | st.text(max_size=3), max_size=40).map("".join)))
def test_any_text_is_a_list_of_jobs_or_an_error_of_one_line(text: str) -> None:
    check_outcome(text)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["10m", "L3", "auto", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(
    [
        *("queue", "priority", "deadline", "estimate", "time_limit", "resources", "checkpoint", "retry"),
        *("failure_policies", "hang", "depends_on", "executor", "launch", "workdir", "environment", "preemptible"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(_FIELDS, _VALUES, max_size=3))
def test_any_value_of_any_field_is_taken_or_refused_in_one_line(fields: dict[str, object]) -> None:
    # JSON is YAML, near enough: what differs must be an error, too.
    text = json.dumps({"name": "a", "command": "x", **fields}, ensure_ascii=False)
    check_outcome(text)
