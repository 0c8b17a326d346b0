"""``sdrs repair``: how far it is, and how fast it may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdrs.cli.amounts import format_bytes, format_duration, format_rate, size
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import emit_facts, emit_json, emit_note
from sdrs.cli.records import Record, repair_record
from sdrs.cli.settings import Settings, VerbGroup, pass_settings

if TYPE_CHECKING:
    from sdrs.upkeep import RepairStatus
    from sdrs.views import RepairProgress


@click.group(cls=VerbGroup, examples="sdrs repair status\nsdrs repair set --rate 200MB --concurrency 4")
def repair() -> None:
    """See what is being made anew, moved and mirrored, and set its pace."""


@repair.command("status", examples="sdrs repair status\nsdrs repair status -o json | jq .waiting_bytes")
@pass_settings
def status(settings: Settings) -> None:
    """Show what repair has to do, how fast it is, and what failed.

    Repair goes by itself: the least redundant first, then what is mirrored to another pool, then what only moves
    (drains, changed pools, rebalancing).
    """
    with open_cluster(settings) as cluster:
        found = cluster.repair()
    if settings.is_json:
        emit_json(_record(found))
        return
    emit_facts(settings, _facts(found))
    for failure in found.failures:
        emit_note(settings, f"failed: {failure}")


@repair.command(
    "set",
    examples="""
    sdrs repair set --rate 200MB       in all, a second
    sdrs repair set --rate 0           as fast as it can
    sdrs repair set --concurrency 4    fragments at once
    """,
)
@click.option("--rate", type=size, metavar="SIZE", help="Bytes a second, as 200MB; 0: no limit.")
@click.option("--concurrency", type=click.IntRange(1, 64), metavar="N", help="How many fragments are made at once.")
@pass_settings
def set_pace(settings: Settings, rate: int | None, concurrency: int | None) -> None:
    """Set how fast repair may be. It is kept by the cluster, and holds for what begins from now on."""
    if rate is None and concurrency is None:
        raise click.UsageError("nothing to change: name at least one of --rate, --concurrency")
    with open_cluster(settings) as cluster:
        changed = cluster.set_repair(rate, concurrency)
    if settings.is_json:
        emit_json({"rate_bytes_per_second": changed.bytes_per_second, "concurrency": changed.concurrency})
    else:
        emit_note(settings, f"repair: {pace(changed.bytes_per_second)}, {changed.concurrency} fragments at once")


def pace(bytes_per_second: int) -> str:
    return f"at most {format_rate(bytes_per_second)}" if bytes_per_second else "no limit"


def progress_words(repair: RepairProgress) -> str:
    """``12 blobs, 1.2 GiB of 3.4 GiB, 210 MB/s, about 14 s left``."""
    words = [f"{repair.waiting_blobs} {'blob' if repair.waiting_blobs == 1 else 'blobs'}"]
    total_bytes = repair.wave_done_bytes + repair.waiting_bytes
    if repair.wave_done_bytes:
        words.append(f"{format_bytes(repair.wave_done_bytes)} of {format_bytes(total_bytes)}")
    else:
        words.append(f"{format_bytes(repair.waiting_bytes)} to copy")
    if repair.bytes_per_second:
        words.append(format_rate(repair.bytes_per_second))
    if repair.remaining_seconds:
        words.append(f"about {format_duration(repair.remaining_seconds)} left")
    return ", ".join(words)


def _facts(found: RepairStatus) -> dict[str, str]:
    repair = found.progress
    return {
        "waiting": progress_words(repair) if repair.waiting_blobs else "nothing to do",
        "moving": f"{repair.moving_blobs} blobs",
        "mirroring": f"{repair.mirroring_blobs} blobs",
        "awaited": f"{repair.awaited_blobs} blobs, made elsewhere if their node stays away",
        "degraded": f"{found.degraded_blob_count} blobs",
        "unavailable": f"{found.unavailable_count} checkpoints",
        "failed": f"{repair.failed_blobs} blobs",
        "done": f"{repair.done_blobs} fragments, {format_bytes(repair.done_bytes)} since the controller leads",
        "rate": pace(found.bytes_per_second),
        "concurrency": str(found.concurrency),
    }


def _record(found: RepairStatus) -> Record:
    return repair_record(found.progress) | {
        "degraded_blob_count": found.degraded_blob_count,
        "unavailable_count": found.unavailable_count,
        "settings": {"bytes_per_second": found.bytes_per_second, "concurrency": found.concurrency},
        "failures": list(found.failures),
    }
