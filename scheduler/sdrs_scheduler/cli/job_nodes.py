"""``sdrs job nodes``: the nodes as the scheduler sees them, those of Slurm too, with their jobs and strikes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from sdrs.cli.amounts import format_time
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import Column, Listing, emit_json, emit_listing, emit_note
from sdrs.cli.settings import Settings, Verb, pass_settings
from sdrs_core.errors import RefusedError
from sdrs_scheduler.cli.job_names import warn_if_idle
from sdrs_scheduler.cli.job_records import Record
from sdrs_scheduler.entries import NodeRecord
from sdrs_scheduler.jobs.job import Job
from sdrs_scheduler.ledger import Ledger

_JOBS_NAMED = 4


@click.command(
    "nodes",
    cls=Verb,
    examples="""
    sdrs job nodes
    sdrs job nodes -o json | jq -r '.[] | select(.state == "cordoned") | .id'
    sdrs job nodes --clear gpu-07                after it was repaired
    """,
)
@click.option("--clear", "to_clear", metavar="NODE", help="Forget what is held against it: it gets jobs again.")
@pass_settings
def nodes(settings: Settings, to_clear: str | None) -> None:
    """List the nodes that jobs run on, with their jobs and strikes.

    A node that failed too many jobs within a day is cordoned. `sdrs node uncordon` opens one that stores checkpoints
    too, --clear any other.
    """
    with open_cluster(settings) as cluster:
        ledger = Ledger(cluster.records)
        if to_clear is not None:
            _clear(ledger, to_clear)
        held = [stored.value for stored in ledger.jobs() if stored.value.state.has_nodes]
        records = [node_record(stored.value, held) for _, stored in sorted(ledger.nodes().items())]
        if to_clear is not None:
            records = [record for record in records if record["id"] == to_clear]
        if settings.is_json:
            emit_json(records)
            return
        if to_clear is not None:
            emit_note(settings, f"nothing is held against {to_clear} any more")
            return
        emit_listing(settings, _listing(records))
        warn_if_idle(settings, ledger)


def _clear(ledger: Ledger, name: str) -> None:
    stored = ledger.nodes().get(name)
    if stored is not None and stored.value.cordoned_because and stored.value.is_storage_node:
        raise RefusedError(
            f"{name} stores checkpoints too: open it for both with `sdrs node uncordon {name}`", node=name
        )
    ledger.clear_node(name)


def node_record(node: NodeRecord, jobs: Sequence[Job]) -> Record:
    """``jobs`` are those that have nodes."""
    mine = [(job, slot) for job in jobs for slot in job.slots if slot.node == node.name]
    return {
        "id": node.name,
        "name": node.name,
        "state": _state(node),
        "why": node.cordoned_because or node.problem,
        "executor": node.executor,
        "gpus": node.gpus,
        "used_gpus": sum(len(slot.gpus) for _, slot in mine),
        "gpu_type": node.gpu_type,
        "groups": list(node.groups),
        "bad_gpus": {str(index): problem for index, problem in sorted(node.bad_gpus.items())},
        "jobs": [{"id": job.id, "name": job.spec.name, "state": job.state.value} for job, _ in mine],
        "strikes": [
            {
                "time": format_time(strike.unix_ms),
                "failure": strike.failure.value,
                "job": strike.job_id,
                "sentence": strike.sentence,
            }
            for strike in node.strikes
        ],
    }


def _state(node: NodeRecord) -> str:
    if not node.is_up:
        return "down"
    return "cordoned" if node.cordoned_because else "up"


def _listing(records: Sequence[Record]) -> Listing:
    columns = [
        Column("NODE"),
        Column("STATE"),
        Column("EXECUTOR"),
        Column("GPUS", is_number=True),
        Column("USED", is_number=True),
        Column("BAD", is_number=True),
        Column("TYPE"),
        Column("GROUPS"),
        Column("STRIKES", is_number=True),
        Column("JOBS"),
        Column("WHY", folds=True),
    ]
    rows = [
        (
            record["id"],
            record["state"],
            record["executor"],
            str(record["gpus"]),
            str(record["used_gpus"]),
            str(len(record["bad_gpus"]) or ""),
            record["gpu_type"],
            ",".join(record["groups"]),
            str(len(record["strikes"]) or ""),
            _some([job["id"] for job in record["jobs"]]),
            record["why"],
        )
        for record in records
    ]
    return Listing(columns, rows, "the scheduler has seen no node yet")


def _some(ids: Sequence[str]) -> str:
    more = f" +{len(ids) - _JOBS_NAMED}" if len(ids) > _JOBS_NAMED else ""
    return ",".join(ids[:_JOBS_NAMED]) + more
