"""``sdrs ckpt``: a job's checkpoints, seen and managed. Those verbs that move bytes are in ``transfers``."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from sdrs.cli.amounts import format_age, format_bytes, format_duration, format_time
from sdrs.cli.checkpoint_arguments import (
    find_checkpoint,
    job_argument,
    list_of_known_job,
    one_step,
    optional_step_argument,
    step_argument,
)
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import Column, Listing, emit_facts, emit_json, emit_listing, emit_note
from sdrs.cli.records import checkpoint_record, shard_nodes, shard_record
from sdrs.cli.settings import Settings, VerbGroup, pass_settings, yes_option
from sdrs.cli.transfers import pull, push
from sdrs.cli.verification import verify
from sdrs_core.checkpoints import Save, SaveState, Shard

# A row for each rank reads well for a few; for thousands the sum says more.
_SHARDS_SHOWN = 32
_STEPS_NAMED = 8


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs ckpt list llm-7b
    sdrs ckpt verify llm-7b --all
    sdrs ckpt pull llm-7b 1000 restored/
    """,
)
def ckpt() -> None:
    """List, check, fetch, store, protect and delete checkpoints."""


@ckpt.command("list", examples="sdrs ckpt list llm-7b\nsdrs ckpt list llm-7b --all -o json")
@job_argument
@click.option("--all", "all_states", is_flag=True, help="Also those pending, set aside, aborted, deleted or retired.")
@pass_settings
def list_checkpoints(settings: Settings, job: str, all_states: bool) -> None:
    """List a job's checkpoints, newest first."""
    with open_cluster(settings) as cluster:
        saves = list_of_known_job(cluster, job, all_states=all_states)
    if settings.is_json:
        emit_json([checkpoint_record(save) for save in saves])
    else:
        emit_listing(settings, _checkpoint_listing(saves, f'job "{job}" has no checkpoints'))


@ckpt.command("show", examples="sdrs ckpt show llm-7b             the newest\nsdrs ckpt show llm-7b 1000 -o json")
@job_argument
@optional_step_argument
@pass_settings
def show(settings: Settings, job: str, step_given: int | None, step_named: int | None) -> None:
    """Show one checkpoint and its shards; the newest by default."""
    step = one_step(step_given, step_named)
    with open_cluster(settings) as cluster:
        save = find_checkpoint(cluster, job, step)
        shards = cluster.checkpoints(job).shards(save.step)
    if settings.is_json:
        emit_json(checkpoint_record(save) | {"shards": [shard_record(shard) for shard in shards]})
        return
    now_unix_ms = int(time.time() * 1000)
    facts = {
        "job": save.job,
        "step": str(save.step),
        "state": _state(save),
        "level": _level(save),
        "size": f"{format_bytes(save.size_bytes)} ({save.size_bytes} bytes)",
        "stored": _stored(save, shards),
        "kind": save.kind.value,
        "pool": save.pool,
        "mirrored": f"whole, in pool {save.mirror_pool}" if save.mirror_pool else "no",
        "attempt": str(save.attempt),
        "ranks": str(save.world_size),
        "nodes": ", ".join(shard_nodes(shards)),
        "created": format_time(save.created_unix_ms) or "",
        "committed": f"{format_time(save.committed_unix_ms)} ({format_age(save.committed_unix_ms, now_unix_ms)})",
        "held": "yes" if save.held else "no",
        "damage": save.damage or "none known",
        "save id": save.save_id,
    }
    if save.failed_restores:
        facts["failures"] = f"{len(save.failed_restores)} of its restores, the last: {save.restore_failure}"
    emit_facts(settings, facts | ({"note": save.note} if save.note else {}))
    emit_note(settings, "")
    emit_listing(settings, _shard_listing(shards))
    if len(shards) > _SHARDS_SHOWN:
        emit_note(settings, f"… and {len(shards) - _SHARDS_SHOWN} more ranks: -o json has them all")


for verb in (verify, pull, push):
    ckpt.add_command(verb)


@ckpt.command("hold", examples="sdrs ckpt hold llm-7b 1000")
@job_argument
@step_argument
@pass_settings
def hold(settings: Settings, job: str, step: int) -> None:
    """Protect a checkpoint from deletion.

    Neither retention nor `delete` takes it until it is released.
    """
    with open_cluster(settings) as cluster:
        _emit_changed(settings, cluster.checkpoints(job).hold(step), "is on hold")


@ckpt.command("release", examples="sdrs ckpt release llm-7b 1000")
@job_argument
@step_argument
@pass_settings
def release(settings: Settings, job: str, step: int) -> None:
    """End a hold: retention counts the checkpoint again."""
    with open_cluster(settings) as cluster:
        _emit_changed(settings, cluster.checkpoints(job).release(step), "is no longer on hold")


@ckpt.command("delete", examples="sdrs ckpt delete llm-7b 900\nsdrs ckpt delete llm-7b 900 --yes")
@job_argument
@step_argument
@yes_option
@pass_settings
def delete(settings: Settings, job: str, step: int, yes: bool) -> None:
    """Delete a checkpoint. `undelete` brings it back until its grace period is over."""
    with open_cluster(settings) as cluster:
        checkpoints = cluster.checkpoints(job)
        found = checkpoints.get(step)
        confirm(f"This deletes {found.title} ({format_bytes(found.size_bytes)}, {found.level}).", yes=yes)
        grace = format_duration(cluster.info().grace_seconds)
        _emit_changed(
            settings, checkpoints.delete(step), f"is deleted; `sdrs ckpt undelete {job} {step}` works for {grace}"
        )


@ckpt.command("undelete", examples="sdrs ckpt undelete llm-7b 900")
@job_argument
@step_argument
@pass_settings
def undelete(settings: Settings, job: str, step: int) -> None:
    """Bring a deleted checkpoint back, within its grace period."""
    with open_cluster(settings) as cluster:
        _emit_changed(settings, cluster.checkpoints(job).undelete(step), "is back")


def _emit_changed(settings: Settings, save: Save, what: str) -> None:
    if settings.is_json:
        emit_json(checkpoint_record(save))
    else:
        emit_note(settings, f"{save.title} {what}")


def _checkpoint_listing(saves: list[Save], when_empty: str) -> Listing:
    now_unix_ms = int(time.time() * 1000)
    columns = [
        Column("STEP", is_number=True),
        Column("STATE"),
        Column("LEVEL"),
        Column("SIZE", is_number=True),
        Column("STORED", is_number=True),
        Column("RANKS", is_number=True),
        Column("ATTEMPT", is_number=True),
        Column("POOL"),
        Column("COMMITTED"),
        Column("NOTES", folds=True),
    ]
    rows = [
        (
            str(save.step),
            _state(save),
            "" if save.evicted or not save.level else str(save.level),
            format_bytes(save.size_bytes),
            format_bytes(save.stored_bytes),
            str(save.world_size),
            str(save.attempt),
            save.pool,
            format_age(save.committed_unix_ms, now_unix_ms),
            _notes(save),
        )
        for save in saves
    ]
    return Listing(columns, rows, when_empty)


def _state(save: Save) -> str:
    return "damaged" if save.damage and save.state is SaveState.COMMITTED else save.state.value


def _level(save: Save) -> str:
    if save.evicted:
        return f"kept in backup {save.evicted} only: a restore recalls it"
    return f"{save.level}, degraded: some redundancy is still being made" if save.degraded else str(save.level)


def _failures(save: Save) -> str:
    """Of restores, as long as they have not marked it as damaged."""
    count = len(save.failed_restores)
    return "" if not count or save.damage else f"failed to restore {count} time{'s' if count > 1 else ''}"


def _stored(save: Save, shards: Sequence[Shard]) -> str:
    steps = sorted({reference.home.step for shard in shards for reference in shard.references})
    if save.evicted:
        return "nothing of it"
    packed = ""
    if save.spared_bytes:
        raw_bytes = save.stored_bytes + save.spared_bytes
        packed = f" ({save.stored_bytes} bytes), compressed from {format_bytes(raw_bytes)}"
    if not steps:
        return f"{format_bytes(save.stored_bytes)}{packed}" if packed else "all of it"
    named = ", ".join(map(str, steps[:_STEPS_NAMED])) + (" …" if len(steps) > _STEPS_NAMED else "")
    return f"{format_bytes(save.stored_bytes)}{packed}; the rest is unchanged since step {named}"


def _notes(save: Save) -> str:
    summary = save.damage.partition(": ")[0]  # `show` and `status` have all of it
    mirrored = f"mirrored to {save.mirror_pool}" if save.mirror_pool else ""
    only = f"in backup {save.evicted} only" if save.evicted else ""
    words = [only, "held" if save.held else "", "degraded" if save.degraded else "", mirrored, summary, _failures(save)]
    words.append(save.note)
    return "; ".join(filter(None, words))


def _shard_listing(shards: Sequence[Shard]) -> Listing:
    columns = [
        Column("RANK", is_number=True),
        Column("SIZE", is_number=True),
        Column("BLOBS", is_number=True),
        Column("NODES"),
    ]
    rows = [
        (str(shard.rank), format_bytes(shard.size_bytes), str(len(shard.blobs)), ", ".join(shard_nodes([shard])))
        for shard in shards[:_SHARDS_SHOWN]
    ]
    return Listing(columns, rows, "no shard has arrived yet")
