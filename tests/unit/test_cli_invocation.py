"""How the command line behaves before any cluster is involved: options, errors, exit codes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sdrs.cli.pointer import Pointer, write_pointer
from sdrs.cli.root import root
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.errors import BY_REASON, SdrsError


@pytest.fixture(autouse=True)
def _no_cluster_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SDRS_HOME", str(tmp_path / "cluster"))
    monkeypatch.delenv("SDRS_URL", raising=False)


@pytest.fixture
def closed_url() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"sdrs://127.0.0.1:{probe.getsockname()[1]}"


def sdrs(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(root, arguments, input=input)


def all_verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from all_verbs(command, (*path, name))


VERBS = dict(all_verbs(root))


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_every_verb_has_help_with_examples(path: tuple[str, ...]) -> None:
    result = sdrs(*path, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert f"sdrs {' '.join(path)}" in result.output.partition("Examples:")[2]


@pytest.mark.parametrize(
    "path", [path for path, verb in VERBS.items() if not isinstance(verb, click.Group)], ids=" ".join
)
def test_every_verb_takes_the_global_options(path: tuple[str, ...]) -> None:
    options = {name for parameter in VERBS[path].params for name in parameter.opts}
    assert {"--url", "-o", "--output", "--timeout", "-v", "--no-color"} <= options


@pytest.mark.parametrize(
    "arguments", [("-o", "json", "version"), ("version", "-o", "json"), ("-o", "table", "version", "-o", "json")]
)
def test_global_options_count_before_and_after_the_verb(arguments: tuple[str, ...]) -> None:
    result = sdrs(*arguments)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["version"]


def test_a_verbs_default_does_not_undo_what_was_said_before_it(closed_url: str) -> None:
    result = sdrs("--url", closed_url, "-o", "json", "ckpt", "list", "job")
    assert json.loads(result.stderr)["error"]["reason"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("frobnicate",), "No such command"),
        (("ckpt", "list"), "Missing argument 'JOB'"),
        (("ckpt", "show", "job", "-5"), "-5 is negative"),
        (("ckpt", "show", "job", "--step", "-5"), "out of range"),
        (("ckpt", "show", "job", "many"), "is not a step"),
        (("ckpt", "show", "job", "5", "--step", "6"), "contradict"),
        (("ckpt", "verify", "job", "5", "--all"), "contradict"),
        (("ckpt", "pull", "job", "1", "2", "dest"), "too many arguments"),
        (("ckpt", "pull", "job", "newest", "dest"), "is not a step"),
        (("ckpt", "push", "job", "1", "/does/not/exist"), "does not exist"),
        (("pool", "create", "fast"), "--level"),
        (("pool", "create", "fast", "--level", "L9"), "L9"),
        (("pool", "set", "fast"), "nothing to change"),
        (("pool", "set", "fast", "--max-age", "soon"), "is not a duration"),
        (("pool", "create", "fast", "--level", "L2", "--read-policy", "nearest"), "nearest"),
        (("history", "--limit", "0"), "0 is not in the range"),
        (("switchover",), "Missing argument 'GROUP'"),
        (("switchover", "g", "--drain", "soon"), "is not a duration"),
        (("meta", "import", "/does/not/exist"), "does not exist"),
        (("meta", "rebuild"), "--node"),
        (("up", "--import", __file__), "--etcd"),
        (("up", "--nodes", "0"), "0 is not in the range"),
        (("pool", "create", "p", "--level", "L2", "--nodes", ""), "names no node"),
        (("pool", "create", "p", "--level", "L2", "--nodes", "a,,b"), "names no node"),
        (("node", "add", "--domain", "bad domain/"), "is not a valid name"),
        (("up", "--port", "70000"), "70000 is not in the range"),
        (("status", "-w"), "needs a terminal"),
        (("down", "--purge"), "--yes"),
        (("completion", "tcsh"), "tcsh"),
        (("--timeout", "0", "status"), "0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_usage_is_told_in_words_and_exits_with_2(arguments: tuple[str, ...], words: str, closed_url: str) -> None:
    result = sdrs("--url", closed_url, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("sdrs: error: ")
    assert words in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("node", "list"),
        ("node", "show", "node-1"),
        ("pool", "list"),
        ("pool", "create", "fast", "--level", "L1"),
        ("group", "list"),
        ("group", "show", "g"),
        ("switchover", "g"),
        ("failover", "g", "--accept-data-loss", "--yes"),
        ("history",),
        ("pause",),
        ("resume",),
        ("node", "cordon", "node-1"),
        ("meta", "snapshot", "/does/not/exist"),
        ("meta", "import", __file__),
        ("meta", "rebuild", "--node", "127.0.0.1:1"),
        ("ckpt", "list", "job"),
        ("ckpt", "show", "job"),
        ("ckpt", "verify", "job", "5"),
        ("ckpt", "delete", "job", "5", "--yes"),
        ("ckpt", "pull", "job", "dest"),
        ("ckpt", "push", "job", "1", "."),
    ],
    ids=" ".join,
)
def test_a_cluster_that_does_not_answer_exits_with_6(arguments: tuple[str, ...], closed_url: str) -> None:
    result = sdrs(*arguments, "--url", closed_url, "--timeout", "2")
    assert result.exit_code == 6
    assert closed_url.removeprefix("sdrs://") in result.stderr
    assert "Traceback" not in result.stderr


def test_without_any_cluster_the_error_says_how_to_get_one() -> None:
    result = sdrs("status")
    assert result.exit_code == 6
    assert "`sdrs up`" in result.stderr
    assert "--url" in result.stderr


def test_the_cluster_comes_from_the_option_then_the_environment_then_the_pointer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closed_url: str
) -> None:
    other = ["sdrs://127.0.0.1:1", "sdrs://127.0.0.1:2"]
    write_pointer(Pointer(closed_url, tmp_path))
    assert f"using {closed_url}" in sdrs("node", "list", "-v").stderr
    monkeypatch.setenv("SDRS_URL", other[0])
    assert f"using {other[0]}" in sdrs("node", "list", "-v").stderr
    assert f"using {other[1]}" in sdrs("node", "list", "-v", "--url", other[1]).stderr


def test_a_malformed_url_is_wrong_usage() -> None:
    result = sdrs("status", "--url", "http://127.0.0.1:7070")
    assert result.exit_code == 2
    assert "sdrs://host:port" in result.stderr


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A verb ``fail`` that raises what the test puts into the list."""
    errors: list[BaseException] = []

    @click.command(cls=Verb)
    @pass_settings
    def fail(settings: Settings) -> None:
        raise errors[0]

    monkeypatch.setitem(root.commands, "fail", fail)
    return errors


@pytest.mark.parametrize("kind", BY_REASON.values(), ids=lambda kind: kind.reason)
def test_every_error_has_its_exit_code_and_its_json(kind: type[SdrsError], failing: list[BaseException]) -> None:
    failing.append(kind("it broke: do this", blob="b1"))
    plain, structured = sdrs("fail"), sdrs("fail", "-o", "json")
    assert plain.exit_code == structured.exit_code == kind.exit_code
    assert plain.stderr == "sdrs: error: it broke: do this\n"
    assert json.loads(structured.stderr) == {
        "error": {"reason": kind.reason, "message": "it broke: do this", "facts": {"blob": "b1"}}
    }


def test_a_defect_is_told_without_a_traceback(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError("division by zero"))
    result = sdrs("fail")
    assert result.exit_code == 1
    assert "defect" in result.stderr
    assert "Traceback" not in result.stderr


def test_twice_verbose_shows_the_traceback(failing: list[BaseException]) -> None:
    failing.append(ZeroDivisionError("division by zero"))
    assert "Traceback" in sdrs("fail", "-vv").stderr
    assert "Traceback" in sdrs("-v", "fail", "-v").stderr
    assert "Traceback" not in sdrs("fail", "-v").stderr


def test_an_error_of_the_system_names_its_file(failing: list[BaseException]) -> None:
    failing.append(PermissionError(13, "Permission denied", "/data/x"))
    result = sdrs("fail")
    assert (result.exit_code, result.stderr) == (1, "sdrs: error: /data/x: Permission denied\n")


def test_an_interrupt_ends_quietly_with_130(failing: list[BaseException]) -> None:
    failing.append(KeyboardInterrupt())
    result = sdrs("fail")
    assert result.exit_code == 130
    assert result.stderr.strip() == ""


def test_completion_scripts_name_the_program() -> None:
    for shell in ("zsh", "fish"):
        result = sdrs("completion", shell)
        assert result.exit_code == 0
        assert "_SDRS_COMPLETE" in result.stdout


def test_completion_offers_verbs_and_stays_quiet_without_a_cluster() -> None:
    environment = os.environ | {"_SDRS_COMPLETE": "bash_complete", "COMP_WORDS": "sdrs ckpt list ", "COMP_CWORD": "3"}
    asked = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, timeout=30)
    assert (asked.stdout.strip(), asked.stderr) == ("", "")
    environment |= {"COMP_WORDS": "sdrs ck", "COMP_CWORD": "1"}
    asked = subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, timeout=30)
    assert asked.stdout.split(",")[-1].strip() == "ckpt"


@pytest.mark.parametrize("group", [(), ("ckpt",)], ids=["sdrs", "sdrs ckpt"])
def test_a_group_alone_is_answered_with_its_help_and_nothing_else(group: tuple[str, ...]) -> None:
    result = sdrs(*group)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == sdrs(*group, "--help").stdout


def test_a_group_alone_is_an_error_for_programs() -> None:
    result = sdrs("-o", "json", "ckpt")
    assert result.exit_code == 2
    assert "a verb is missing" in json.loads(result.stderr)["error"]["message"]


def test_levels_are_offered_as_they_are_written_and_taken_in_any_case(closed_url: str) -> None:
    missing = sdrs("pool", "create", "fast")
    assert missing.exit_code == 2
    assert "Choose from: L1, L2, L3\n" in missing.stderr
    assert "'L1', 'L2', 'L3'" in sdrs("pool", "create", "fast", "--level", "l9").stderr
    assert sdrs("--url", closed_url, "--timeout", "0.5", "pool", "create", "fast", "--level", "l1").exit_code == 6


def test_the_version_is_told_both_ways() -> None:
    assert sdrs("--version").stdout == sdrs("version").stdout
    assert sdrs("--version").stdout.startswith("sdrs ")


# As a process of its own.

PROGRAM = [sys.executable, "-m", "sdrs.cli.main"]


def test_a_reader_that_goes_away_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed:
        process = subprocess.run([*PROGRAM, "--help"], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=30)
    assert process.stderr == ""


def test_ctrl_c_while_waiting_ends_quietly_with_130() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        url = f"sdrs://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [*PROGRAM, "node", "list", "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What a shell starts in the background ignores Ctrl-C, and so would its children.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        with process:
            silent.settimeout(30)
            connection, _ = silent.accept()
            with connection:
                time.sleep(0.1)  # not a hope: the interrupt may come at any moment, this makes it come while waiting
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_packages_the_program_says_what_to_install(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None\nfrom sdrs.cli.main import main\nmain()"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert process.returncode == 1
    assert "pip install 'sdrs[cli]'" in process.stderr
    assert "Traceback" not in process.stderr


def test_help_loads_neither_grpc_nor_rich() -> None:
    program = (
        "import sys\nfrom sdrs.cli.root import root\n"
        "try: root.main(['ckpt', '--help'])\n"
        "except SystemExit: print({'grpc', 'rich', 'numpy'} & sys.modules.keys(), file=sys.stderr)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert process.stderr.strip() == "set()"
