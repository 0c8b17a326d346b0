"""``sdrs meta``: the catalog as a file, and its return after it was lost."""

from __future__ import annotations

from pathlib import Path

import click

from sdrs.cli import failures
from sdrs.cli.amounts import format_bytes
from sdrs.cli.confirm import confirm
from sdrs.cli.connection import find_url, open_cluster
from sdrs.cli.local_processes import running_node_addresses
from sdrs.cli.output import emit_json, emit_note, emit_warning
from sdrs.cli.pointer import read_pointer
from sdrs.cli.progress import stage_bar
from sdrs.cli.settings import Settings, VerbGroup, pass_settings, yes_option

_NEW_FILE = click.Path(path_type=Path, dir_okay=False)
_EXISTING_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(
    cls=VerbGroup,
    examples="""
    sdrs meta snapshot nightly.sdrs
    sdrs meta export move.sdrs
    sdrs meta rebuild --snapshot nightly.sdrs
    """,
)
def meta() -> None:
    """Move, snapshot and rebuild the catalog: what is stored where."""


@meta.command("export", examples="sdrs meta export move.sdrs\nsdrs meta export move.sdrs --yes")
@click.argument("file", type=_NEW_FILE)
@yes_option
@pass_settings
def export(settings: Settings, file: Path, yes: bool) -> None:
    """Write the catalog into FILE to move it to another store, and seal this one.

    A sealed cluster serves reads and changes nothing any more: two that go on from the same catalog would tell nodes
    different things. To move a cluster of this machine from SQLite to etcd: `sdrs meta export FILE`, `sdrs down`,
    `sdrs up --etcd --import FILE`. FILE holds the keys of the nodes: keep it as safe as the cluster.
    """
    with open_cluster(settings) as cluster:
        confirm(
            f"This seals the cluster at {cluster.url}: it serves reads, but saves and changes are refused until {file} "
            "is imported into another store. It cannot be undone.",
            yes=yes,
        )
        size_bytes = cluster.export_meta(file, seal=True)
    if settings.is_json:
        emit_json({"file": str(file), "size_bytes": size_bytes, "sealed": True})
        return
    emit_note(settings, f"the catalog is in {file} ({format_bytes(size_bytes)}), and this cluster is sealed")
    emit_note(settings, f"next:  sdrs down\n       sdrs up --etcd --import {file}")


@meta.command("snapshot", examples="sdrs meta snapshot nightly.sdrs\nsdrs meta snapshot nightly.sdrs -o json")
@click.argument("file", type=_NEW_FILE)
@pass_settings
def snapshot(settings: Settings, file: Path) -> None:
    """Write the catalog as it is now into FILE; the cluster goes on.

    Nodes keep snapshots by themselves; this is one to put away. `sdrs meta rebuild --snapshot FILE` comes back to it,
    and to what the nodes have since; it cannot be imported. FILE holds the keys of the nodes: keep it as safe as
    the cluster.
    """
    with open_cluster(settings) as cluster:
        size_bytes = cluster.export_meta(file, seal=False)
    if settings.is_json:
        emit_json({"file": str(file), "size_bytes": size_bytes, "sealed": False})
    else:
        emit_note(settings, f"a snapshot of the catalog is in {file} ({format_bytes(size_bytes)})")


@meta.command("import", examples="sdrs meta import move.sdrs")
@click.argument("file", type=_EXISTING_FILE)
@pass_settings
def import_catalog(settings: Settings, file: Path) -> None:
    """Fill a controller whose catalog is empty from FILE, as `sdrs meta export` wrote it.

    Any other controller is refused (exit 4), and so is a snapshot: that is for `sdrs meta rebuild --snapshot FILE`.
    """
    with open_cluster(settings) as cluster:
        imported = cluster.import_meta(file)
    if settings.is_json:
        emit_json(
            {
                "cluster_id": imported.cluster_id,
                "incarnation": imported.incarnation,
                "record_count": imported.record_count,
            }
        )
    else:
        emit_note(settings, f"{imported.record_count} records are imported: this is cluster {imported.cluster_id} now")


@meta.command(
    "rebuild",
    examples="""
    sdrs meta rebuild                                    a cluster on this machine
    sdrs meta rebuild --node 10.0.0.5:7071 --node 10.0.0.6:7071
    sdrs meta rebuild --snapshot nightly.sdrs            or a newer copy, if a node has one
    """,
)
@click.option(
    "--node", "nodes", multiple=True, metavar="HOST:PORT", help="A storage node; all of them should be given."
)
@click.option(
    "--snapshot",
    "snapshot_file",
    type=_EXISTING_FILE,
    metavar="FILE",
    help="A copy that `sdrs meta snapshot` wrote, beside those that nodes keep: the newest is taken.",
)
@click.pass_context
@pass_settings
def rebuild(settings: Settings, context: click.Context, nodes: tuple[str, ...], snapshot_file: Path | None) -> None:
    """Bring back a catalog that is lost for good, from what the nodes hold.

    The controller must be new, with an empty catalog; any other is refused (exit 4). Nodes keep snapshots of the
    catalog, and every fragment says what it belongs to. Exits with 3 if something could not be brought back.
    """
    addresses = list(nodes) or _local_nodes(settings)
    with open_cluster(settings) as cluster, stage_bar(settings, "rebuilding the catalog") as advance:
        rebuilt = cluster.rebuild_meta(addresses, advance, snapshot_file)
    for problem in rebuilt.problems:
        emit_warning(settings, problem)
    if settings.is_json:
        emit_json(
            {"checkpoint_count": rebuilt.checkpoint_count, "problems": list(rebuilt.problems), "nodes": addresses}
        )
    else:
        emit_note(settings, f"{rebuilt.checkpoint_count} checkpoints are back, from {len(addresses)} nodes")
    if rebuilt.problems:
        context.exit(failures.DEGRADED)


def _local_nodes(settings: Settings) -> list[str]:
    """The nodes that run on this machine, if the cluster in question is the one that `sdrs up` left."""
    url, _ = find_url(settings)
    pointer = read_pointer()
    addresses = running_node_addresses(pointer.dir) if pointer is not None and pointer.url == url else []
    if not addresses:
        raise click.UsageError("no running nodes of this cluster were found on this machine: name all with --node")
    return addresses
