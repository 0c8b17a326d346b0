"""``sdrs backup target``: where backups go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sdrs.cli import failures
from sdrs.cli.amounts import size
from sdrs.cli.backup_words import place, target_listing, target_record, target_status_record
from sdrs.cli.completion import complete_target
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import open_cluster
from sdrs.cli.output import Column, Listing, emit_json, emit_listing, emit_note, emit_warning, spinner
from sdrs.cli.settings import Settings, VerbGroup, pass_settings, yes_option
from sdrs_core.backup.targets import Target, TargetName
from sdrs_core.ids import check_name

if TYPE_CHECKING:
    from sdrs import Cluster
    from sdrs.backups import ProbeStep


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs backup target add nas --endpoint http://nas:9000 --bucket backups --prefix prod
    sdrs backup target test nas
    """,
)
def target() -> None:
    """Where backups go: buckets of S3-compatible stores."""


@target.command(
    "add",
    examples="""
    sdrs backup target add aws --bucket acme-backups --prefix prod --region eu-central-1
    sdrs backup target add nas --endpoint http://nas:9000 --bucket backups --credentials file:/etc/sdrs/nas.json
    sdrs backup target add safe --bucket acme-safe --encryption-key file:/etc/sdrs/backup.key
    sdrs backup target add nas --endpoint http://nas:9000 --bucket backups --take-over
    """,
)
@click.argument("name")
@click.option("--bucket", required=True, help="The bucket; it must exist.")
@click.option("--prefix", default="", help="Everything is stored below it; one cluster for each prefix.")
@click.option("--endpoint", default="", metavar="URL", help="Of the store, as http://nas:9000 (AWS).")
@click.option("--region", default="", help="Of the bucket, where the store has regions.")
@click.option(
    "--addressing",
    type=click.Choice(["auto", "path", "virtual"]),
    default="auto",
    help="The bucket in the path or in the name of the host (auto: the path where an endpoint is given).",
)
@click.option("--ca-file", default="", metavar="FILE", help="Certificates that the endpoint's is checked with.")
@click.option(
    "--credentials",
    default="chain",
    metavar="SOURCE",
    help="chain (environment, profile, role), file:PATH, profile:NAME or env:PREFIX; looked up on each machine.",
)
@click.option(
    "--encryption-key",
    default="",
    metavar="SOURCE",
    help="Encrypt before upload (AES-256-GCM): file:PATH, env:NAME or command:COMMAND gives the key.",
)
@click.option("--former-key", "former_keys", multiple=True, metavar="SOURCE", help="A key that was used before.")
@click.option(
    "--limit", type=size, default="0", metavar="SIZE/S", help="Bytes a second of all uploads, as 100MB/s; 0: none."
)
@click.option("--concurrency", type=click.IntRange(1, 64), default=4, metavar="N", help="Transfers at once (4).")
@click.option("--take-over", is_flag=True, help="The prefix is another cluster's, which is gone for good: asks.")
@click.option("--test/--no-test", "tests", default=True, help="Try it first, from the controller and each node.")
@yes_option
@click.pass_context
@pass_settings
def add(
    settings: Settings,
    context: click.Context,
    name: str,
    bucket: str,
    prefix: str,
    endpoint: str,
    region: str,
    addressing: str,
    ca_file: str,
    credentials: str,
    encryption_key: str,
    former_keys: tuple[str, ...],
    limit: int,
    concurrency: int,
    take_over: bool,
    tests: bool,
    yes: bool,
) -> None:
    """Add a target, or change the one of this name.

    A prefix that holds backups of another cluster is only read: `sdrs backup import NAME` brings these here. Exits with
    3 if the target was added but a test of it failed.
    """
    wanted = Target(
        name=TargetName(check_name(name, "target")),
        bucket=bucket,
        prefix=prefix.strip("/"),
        endpoint=endpoint,
        region=region,
        addressing=addressing,
        ca_file=ca_file,
        credentials=credentials,
        encryption_key=encryption_key,
        former_keys=former_keys,
        max_bytes_per_second=limit,
        concurrency=concurrency,
    )
    if take_over:
        confirm(
            f"{place(wanted)} belongs to this cluster from here on. If the one that it belonged to still runs, each "
            "would delete what the other one needs.",
            yes=yes,
        )
    with open_cluster(settings) as cluster:
        with spinner(settings) as tell:
            tell(f"asking {place(wanted)}")
            added = cluster.backups.add_target(wanted, take_over=take_over)
        steps = _probe(settings, cluster, name) if tests and not added.source_cluster_id else []
    failed = [step for step in steps if not step.ok]
    if settings.is_json:
        emit_json(target_record(added))
    else:
        emit_note(settings, f'backups may go to "{name}", {place(added)}')
    if added.source_cluster_id:
        emit_warning(
            settings,
            f"{place(added)} holds backups of cluster {added.source_cluster_id}: it is only read. `sdrs backup import "
            f"{name}` brings them here; --take-over makes it ours if that cluster is gone for good",
        )
    for step in failed:
        emit_warning(settings, f"{step.step} fails from {step.where}: {step.detail}")
    if failed:
        context.exit(failures.DEGRADED)


@target.command("list", examples="sdrs backup target list\nsdrs backup target list -o json")
@pass_settings
def list_targets(settings: Settings) -> None:
    """List the targets, what each holds, and what is wrong with it."""
    with open_cluster(settings) as cluster:
        found = cluster.backups.targets()
    if settings.is_json:
        emit_json([target_status_record(one) for one in found])
        return
    emit_listing(settings, target_listing(found))
    for one in found:
        if one.failure:
            emit_warning(settings, f"{one.target.name}: {one.failure}")


@target.command("test", examples="sdrs backup target test nas")
@click.argument("name", shell_complete=complete_target)
@click.pass_context
@pass_settings
def test(settings: Settings, context: click.Context, name: str) -> None:
    """Write, read, list, upload in parts and delete below the prefix, from the controller and from each node.

    Each step that fails says what it needs. Exits with 1 if one does.
    """
    with open_cluster(settings) as cluster:
        steps = _probe(settings, cluster, name)
    if settings.is_json:
        emit_json([{"where": s.where, "step": s.step, "ok": s.ok, "detail": s.detail or None} for s in steps])
    else:
        columns = (Column("FROM"), Column("STEP"), Column("STATE"), Column("DETAIL", folds=True))
        rows = [[step.where, step.step, "ok" if step.ok else "fail", step.detail] for step in steps]
        emit_listing(settings, Listing(columns, rows, "nothing was tried"))
    if not steps or not all(step.ok for step in steps):
        context.exit(failures.FAILED)


def _probe(settings: Settings, cluster: Cluster, name: str) -> list[ProbeStep]:
    found = []
    with spinner(settings) as tell:
        for step in cluster.backups.test_target(name):
            tell(f"{step.where}: {step.step}")
            found.append(step)
    return found


@target.command("rotate-key", examples="sdrs backup target rotate-key safe --encryption-key file:/etc/sdrs/new.key")
@click.argument("name", shell_complete=complete_target)
@click.option("--encryption-key", required=True, metavar="SOURCE", help="The new key, as for `target add`.")
@pass_settings
def rotate_key(settings: Settings, name: str, encryption_key: str) -> None:
    """Put the target under another key.

    Only the small data keys in the bucket are wrapped anew: no object is uploaded again. The old key has to be there
    until this is done, and is of no use afterwards.
    """
    with open_cluster(settings) as cluster:
        count = cluster.backups.rotate_key(name, encryption_key)
    if settings.is_json:
        emit_json({"name": name, "rewrapped_keys": count})
    else:
        emit_note(settings, f'{count} data keys of "{name}" are under the new key')


@target.command("remove", examples="sdrs backup target remove nas\nsdrs backup target remove nas --yes")
@click.argument("name", shell_complete=complete_target)
@click.option("--accept-data-loss", is_flag=True, help="Also if checkpoints are kept there only.")
@yes_option
@pass_settings
def remove(settings: Settings, name: str, accept_data_loss: bool, yes: bool) -> None:
    """Forget a target and its policies. What is in the bucket stays there.

    Refused (exit 4) while checkpoints are kept there only.
    """
    with open_cluster(settings) as cluster:
        found = cluster.backups.target(name)
        lost = " Checkpoints that are kept there only are given up." if accept_data_loss else ""
        confirm(f'This forgets the target "{name}", {place(found.target)}.{lost}', yes=yes)
        cluster.backups.remove_target(name, accept_data_loss=accept_data_loss)
    if settings.is_json:
        emit_json(target_status_record(found))
    else:
        emit_note(settings, f'target "{name}" is forgotten; what it holds is still in {place(found.target)}')
