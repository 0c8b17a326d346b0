"""``sdrs up`` and ``sdrs down``: a cluster on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sdrs.cli import failures
from sdrs.cli.confirm import confirm
from sdrs.cli.local_cluster import UpOutcome, Wish, bring_up
from sdrs.cli.local_down import take_down
from sdrs.cli.local_layout import DEFAULT_NODE_COUNT, DEFAULT_PORT, default_dir
from sdrs.cli.output import emit_json, emit_note, emit_warning, spinner
from sdrs.cli.pointer import read_pointer
from sdrs.cli.pool_words import stores
from sdrs.cli.settings import Settings, Verb, dir_option, pass_settings, yes_option

# Each is a process of some 60 MiB: beyond this one machine shows nothing new.
_NODE_COUNT = click.IntRange(1, 64)
_DISK_COUNT = click.IntRange(1, 64)

_NEXT = """
next:  sdrs status
       sdrs ckpt push my-job 1 some/folder
       sdrs ckpt list my-job
       sdrs job init && sdrs job submit job.yaml
       sdrs down"""


@click.command(
    cls=Verb,
    examples="""
    sdrs up                          three nodes, controller on 127.0.0.1:7070
    sdrs up --nodes 5                two more nodes, if three are running
    sdrs up --nodes 7                erasure-coded 4+2, with one node to spare
    sdrs up --dir /scratch/sdrs --port 0     elsewhere, on any free port
    sdrs up --etcd                   two controllers on three etcds: any one of them may die
    sdrs up --no-scheduler           checkpoints only
    sdrs up --etcd --import FILE     a cluster on SQLite, moved, after `sdrs meta export FILE` and `sdrs down`
    """,
)
@click.option("--nodes", type=_NODE_COUNT, metavar="N", help=f"How many nodes ({DEFAULT_NODE_COUNT}).")
@dir_option("Where the cluster lives: SDRS_HOME, or ~/.local/share/sdrs.")
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="P", help=f"The controller's ({DEFAULT_PORT}); 0: any free."
)
@click.option("--disks-per-node", type=_DISK_COUNT, metavar="N", default=1, help="Data folders of each new node (1).")
@click.option("--etcd", is_flag=True, help="Two controllers on three etcds, instead of one on SQLite.")
@click.option(
    "--import",
    "import_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
    metavar="FILE",
    help="Begin with a catalog that `sdrs meta export` wrote; with --etcd.",
)
@click.option("--no-scheduler", is_flag=True, help="Only what keeps checkpoints; one that runs is left running.")
@click.pass_context
@pass_settings
def up(
    settings: Settings,
    context: click.Context,
    nodes: int | None,
    directory: Path | None,
    port: int | None,
    disks_per_node: int,
    etcd: bool,
    import_file: Path | None,
    no_scheduler: bool,
) -> None:
    """Start a cluster on this machine: a controller, a few nodes, and the scheduler of jobs.

    They stay up after this command ends, until `sdrs down`. Run again, it starts what has died and adds nodes; it never
    removes any (`sdrs node remove` does). Data is kept between runs. A new cluster gets a pool `default` at the highest
    level that its nodes allow: L3 with the erasure code 4+2 from six nodes on, L2 with two copies from two on, L1 with
    one; it is left as it is when nodes are added, and `sdrs pool set default --level L3 --ec 4+2` raises it.
    """
    if import_file is not None and not etcd:
        raise click.UsageError("--import goes with --etcd; a running, empty controller takes `sdrs meta import`")
    folder = directory or default_dir()
    with spinner(settings) as tell:
        outcome = bring_up(folder, Wish(nodes, port, disks_per_node, etcd, import_file, not no_scheduler), tell)
    _emit_up(settings, outcome, nodes)
    if outcome.halted:
        context.exit(failures.DEGRADED)


def _emit_up(settings: Settings, outcome: UpOutcome, nodes: int | None) -> None:
    pool = outcome.pool
    if settings.is_json:
        emit_json(
            {
                "url": outcome.url,
                "dir": str(outcome.dir),
                "nodes": outcome.node_count,
                "started": outcome.started,
                "store": outcome.store,
                "pool": pool.name if pool is not None else None,
                "level": str(pool.level) if pool is not None else None,
                "halted": outcome.halted,
                "scheduler": outcome.has_scheduler,
                "no_scheduler": outcome.no_scheduler,
            }
        )
        return
    if nodes is not None and nodes < outcome.node_count:
        emit_warning(settings, f"the cluster has {outcome.node_count} nodes: `up` adds nodes but never removes any")
    nodes_running = "1 node" if outcome.node_count == 1 else f"{outcome.node_count} nodes"
    control = "a controller" if outcome.store == "sqlite" else "two controllers on three etcds"
    parts = f"{control}, {nodes_running} and a scheduler" if outcome.has_scheduler else f"{control} and {nodes_running}"
    where = f"{parts} at {outcome.url}, data and logs in {outcome.dir}"
    if pool is not None:
        where += f'\npool "{pool.name}" is at {pool.level}, {stores(pool)}'
    if outcome.no_scheduler:
        emit_warning(settings, f"there is no scheduler: {outcome.no_scheduler}")
    if outcome.halted:
        emit_note(settings, f"running: {where}")
        emit_warning(settings, outcome.halted)
        return
    if not outcome.started:
        emit_note(settings, f"already running: {where}")
        return
    emit_note(settings, f"started {', '.join(outcome.started)}\nrunning: {where}\n{_NEXT}")


@click.command(
    cls=Verb,
    examples="""
    sdrs down                        stop it; `sdrs up` brings it back with its data
    sdrs down --stop-jobs            jobs first: they save what they have, and `sdrs up` goes on from there
    sdrs down --purge                stop it and delete all its data
    """,
)
@dir_option("Where the cluster lives, if not the one that is running.")
@click.option("--purge", is_flag=True, help="Delete its data too, for good.")
@click.option("--stop-jobs", is_flag=True, help="Ask the jobs that run on this machine to save and end, first.")
@yes_option
@pass_settings
def down(settings: Settings, directory: Path | None, purge: bool, stop_jobs: bool, yes: bool) -> None:
    """Stop the cluster on this machine. Its data is kept.

    Daemons finish what they are writing; one that does not end within 15 seconds is killed, which is safe: what was
    acknowledged is on disk. Jobs that run here go on, and the next `sdrs up` finds them; with --stop-jobs they are
    warned as by a preemption, and start again with the next `sdrs up`, from what they saved.
    """
    folder = running_dir(directory)
    if purge:
        confirm(f"This deletes every checkpoint of the cluster in {folder}, for good.", yes=yes)
    with spinner(settings) as tell:
        tell("waiting for jobs and daemons to finish" if stop_jobs else "waiting for the daemons to finish")
        outcome = take_down(folder, delete_data=purge, stop_jobs=stop_jobs)
    if settings.is_json:
        emit_json(
            {
                "dir": str(folder),
                "stopped": outcome.stopped,
                "killed": outcome.killed,
                "purged": outcome.purged,
                "ended_runs": outcome.ended_runs,
                "left_runs": outcome.left_runs,
            }
        )
        return
    if outcome.ended_runs:
        emit_note(settings, f"ended {', '.join(outcome.ended_runs)}: `sdrs up` starts them again")
    if outcome.stopped:
        emit_note(settings, f"stopped {', '.join(outcome.stopped)}")
    else:
        emit_note(settings, f"nothing is running in {folder}")
    if outcome.left_runs:
        count = len(outcome.left_runs)
        still = "1 job still runs" if count == 1 else f"{count} jobs still run"
        emit_warning(
            settings,
            f"{still} ({', '.join(outcome.left_runs)}), and cannot save until `sdrs up`, which finds them again: "
            "to end them first, use `sdrs down --stop-jobs`",
        )
    if outcome.killed:
        emit_warning(settings, f"{', '.join(outcome.killed)} did not end in time and had to be killed")
    if outcome.purged:
        emit_note(settings, f"deleted all data in {folder}")
    if outcome.left:
        emit_warning(settings, f"left alone, not written by SDRS: {', '.join(str(path) for path in outcome.left)}")


def running_dir(directory: Path | None) -> Path:
    """--dir, else SDRS_HOME, else where `sdrs up` was last used, else the default."""
    if directory is not None:
        return directory
    pointer = read_pointer()
    return pointer.dir if pointer is not None and not os.environ.get("SDRS_HOME") else default_dir()
