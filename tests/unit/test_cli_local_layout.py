"""The folder of a cluster on this machine: whose it is, what is in it, who may work on it."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import socket
import tomllib
from pathlib import Path
from typing import IO

import pytest

from sdrs.cli.local_cluster import Wish, bring_up, decide_layout, free_port, port_is_free
from sdrs.cli.local_daemons import controller_daemons, etcd_daemons, node_daemons
from sdrs.cli.local_down import take_down
from sdrs.cli.local_layout import (
    DEFAULT_PORT,
    EtcdPorts,
    Layout,
    default_dir,
    folder_lock,
    read_layout,
    write_layout,
)
from sdrs.cli.local_nodes import add_nodes, stop_removed
from sdrs.cli.pointer import Pointer, pointer_path, read_pointer, remove_pointer, write_pointer
from sdrs_core.errors import AlreadyExistsError, NotFoundError, RefusedError


@pytest.fixture(autouse=True)
def _own_state_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


ETCD = EtcdPorts(20000, (20001, 20002, 20003), (20004, 20005, 20006))


def always(port: int) -> bool:
    return True


def never(port: int) -> bool:
    return False


def test_a_new_cluster_has_three_nodes_on_the_usual_port() -> None:
    assert decide_layout(None, Wish(), is_running=False, is_free=always) == Layout(DEFAULT_PORT, (1, 1, 1))


def test_nodes_are_added_and_never_taken_away() -> None:
    known = Layout(7070, (1, 1, 1))
    assert decide_layout(known, Wish(5, disks_per_node=2), is_running=True, is_free=never).disk_counts == (
        1,
        1,
        1,
        2,
        2,
    )
    assert decide_layout(known, Wish(1), is_running=True, is_free=never) == known


def test_a_removed_node_is_not_started_again_and_its_name_is_not_given_twice(tmp_path: Path) -> None:
    layout = Layout(7070, (1, 1, 1)).without(2)
    assert [daemon.name for daemon in node_daemons(tmp_path, layout)] == ["node-1", "node-3"]
    grown = decide_layout(layout, Wish(4), is_running=True, is_free=never)
    assert [daemon.name for daemon in node_daemons(tmp_path, grown)] == ["node-1", "node-3", "node-4", "node-5"]
    assert decide_layout(layout, Wish(2), is_running=True, is_free=never) == layout
    write_layout(tmp_path, grown)
    assert read_layout(tmp_path) == grown


def test_a_node_may_share_a_failure_domain_with_others(tmp_path: Path) -> None:
    layout = Layout(7070, (1,)).with_more(2, 2, "rack-1").with_more(1, 1)
    domains = [tomllib.loads(daemon.settings)["node"]["domain"] for daemon in node_daemons(tmp_path, layout)]
    assert domains == ["node-1", "rack-1", "rack-1", "node-4"]
    assert layout.disk_counts == (1, 2, 2, 1)
    write_layout(tmp_path, layout)
    assert read_layout(tmp_path) == layout


def test_a_node_is_added_to_a_running_cluster_only(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no cluster"):
        add_nodes(tmp_path / "absent", 1, 1, "", print)
    write_layout(tmp_path, Layout(7171, (1,)))
    with pytest.raises(RefusedError, match="is not running"):
        add_nodes(tmp_path, 1, 1, "", print)
    assert read_layout(tmp_path) == Layout(7171, (1,))


def test_a_removed_node_is_forgotten_if_it_is_one_of_this_machine(tmp_path: Path) -> None:
    write_layout(tmp_path, Layout(7171, (1, 1)))
    assert not stop_removed("sdrs://127.0.0.1:7171", "node-2"), "no cluster is known here"
    write_pointer(Pointer("sdrs://127.0.0.1:7171", tmp_path))
    assert not stop_removed("sdrs://127.0.0.1:9999", "node-2"), "that is another cluster"
    assert not stop_removed("sdrs://127.0.0.1:7171", "node-9")
    assert stop_removed("sdrs://127.0.0.1:7171", "node-2")
    assert read_layout(tmp_path) == Layout(7171, (1, 1)).without(2)


def test_the_port_moves_only_while_nothing_runs() -> None:
    known = Layout(7070, (1,))
    assert decide_layout(known, Wish(port=8080), is_running=False, is_free=always).port == 8080
    with pytest.raises(RefusedError, match="sdrs down"):
        decide_layout(known, Wish(port=8080), is_running=True, is_free=always)


def test_any_free_port_means_the_known_one_while_it_is_free() -> None:
    known = Layout(7070, (1,))
    assert decide_layout(known, Wish(port=0), is_running=True, is_free=never).port == 7070
    assert decide_layout(known, Wish(port=0), is_running=False, is_free=always).port == 7070
    assert decide_layout(known, Wish(port=0), is_running=False, is_free=never).port not in (0, 7070)


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_is_free(server.getsockname()[1])
    assert port_is_free(free_port())


def test_configurations_are_toml_with_absolute_paths(tmp_path: Path) -> None:
    layout = Layout(7171, (1, 2))
    folder = tmp_path / 'a "quoted" folder'
    (only,) = controller_daemons(folder, layout)
    controller = tomllib.loads(only.settings)
    assert controller["roles"] == ["controller"]
    assert controller["controller"] == {"listen": "127.0.0.1:7171", "default_pool": False}
    second = tomllib.loads(node_daemons(folder, layout)[1].settings)
    assert second["data_dir"] == str(folder / "node-2")
    assert second["node"]["id"] == second["node"]["domain"] == "node-2"
    assert second["node"]["controllers"] == ["127.0.0.1:7171"]
    assert second["node"]["disks"] == [str(folder / "node-2" / "disk-1"), str(folder / "node-2" / "disk-2")]


def test_the_layout_reads_back(tmp_path: Path) -> None:
    assert read_layout(tmp_path / "absent") is None
    assert read_layout(tmp_path) is None
    write_layout(tmp_path, Layout(7171, (1, 2)))
    assert read_layout(tmp_path) == Layout(7171, (1, 2))


def test_the_layout_of_a_cluster_on_etcd_reads_back_and_is_not_taken_for_one_on_sqlite(tmp_path: Path) -> None:
    write_layout(tmp_path, Layout(7171, (1, 2), ETCD))
    assert read_layout(tmp_path) == Layout(7171, (1, 2), ETCD)
    assert json.loads((tmp_path / "cluster.json").read_text())["format"] == 2
    write_layout(tmp_path, Layout(7171, (1,)))
    assert json.loads((tmp_path / "cluster.json").read_text()) == {"format": 1, "port": 7171, "disk_counts": [1]}


def test_a_new_cluster_on_etcd_has_ports_of_its_own_that_are_free() -> None:
    wish = Wish(2, etcd=True)
    layout = decide_layout(None, wish, is_running=False, is_free=lambda port: port % 2 == 0)
    assert layout.etcd is not None
    assert len({layout.port, *layout.etcd.all}) == 8
    assert all(port % 2 == 0 and 20_000 <= port < 32_000 for port in layout.etcd.all)
    assert layout.url == f"sdrs://127.0.0.1:7070,127.0.0.1:{layout.etcd.standby}"
    # Later runs keep them, with and without the option: etcd's members know each other by them.
    for again in (Wish(), Wish(etcd=True), Wish(3)):
        assert decide_layout(layout, again, is_running=False, is_free=never).etcd == layout.etcd
    with pytest.raises(RefusedError, match="no free ports"):
        decide_layout(None, wish, is_running=False, is_free=never)


def test_a_cluster_on_sqlite_moves_to_etcd_by_import_only_and_only_while_it_is_down(tmp_path: Path) -> None:
    known = Layout(7070, (1, 2))
    for wish, is_running in ((Wish(etcd=True), False), (Wish(etcd=True, import_file=tmp_path / "f"), True)):
        with pytest.raises(RefusedError, match=r"sdrs meta export FILE.*sdrs down.*sdrs up --etcd --import FILE"):
            decide_layout(known, wish, is_running=is_running, is_free=always)
    moved = decide_layout(known, Wish(etcd=True, import_file=tmp_path / "f"), is_running=False, is_free=always)
    assert moved.etcd is not None
    assert (moved.port, moved.disk_counts) == (known.port, known.disk_counts)


def test_controllers_nodes_and_etcds_are_told_of_each_other(tmp_path: Path) -> None:
    layout = Layout(7171, (1,), ETCD)
    controllers = [tomllib.loads(daemon.settings) for daemon in controller_daemons(tmp_path, layout)]
    assert [one["controller"]["listen"] for one in controllers] == ["127.0.0.1:7171", "127.0.0.1:20000"]
    for one in controllers:
        assert one["controller"]["store"] == "etcd"
        assert one["controller"]["etcd"]["endpoints"] == ["127.0.0.1:20001", "127.0.0.1:20002", "127.0.0.1:20003"]
    (node,) = node_daemons(tmp_path, layout)
    assert tomllib.loads(node.settings)["node"]["controllers"] == ["127.0.0.1:7171", "127.0.0.1:20000"]
    etcds = etcd_daemons(tmp_path, layout)
    assert [daemon.config.name for daemon in etcds] == ["etcd-1.yaml", "etcd-2.yaml", "etcd-3.yaml"]
    settings = [json.loads(daemon.settings) for daemon in etcds]
    assert len({one["initial-cluster"] for one in settings}) == 1
    for one, daemon in zip(settings, etcds, strict=True):
        assert f"{daemon.name}={one['listen-peer-urls']}" in one["initial-cluster"].split(",")
    assert etcd_daemons(tmp_path, Layout(7171, (1,))) == []


def test_a_port_of_an_etcd_that_is_taken_is_named_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        write_layout(tmp_path, Layout(free_port(), (1,), EtcdPorts(free_port(), (taken, 1, 2), (3, 4, 5))))
        with pytest.raises(AlreadyExistsError, match=f"port {taken} .* cannot move"):
            bring_up(tmp_path, Wish(), lambda text: None)
    assert not list((tmp_path / "logs").iterdir())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 1}',
        '{"format": 99, "port": 1, "disk_counts": []}',
        '{"format": 2, "port": 1, "disk_counts": []}',
    ],
)
def test_a_marker_that_cannot_be_read_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(RefusedError, match=str(tmp_path)):
        read_layout(tmp_path)


def test_a_folder_of_somebody_else_is_refused_and_left_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(RefusedError, match="--dir"):
        bring_up(tmp_path, Wish(), lambda text: None)
    with pytest.raises(RefusedError, match="--dir"):
        take_down(tmp_path, delete_data=True)
    assert not take_down(tmp_path, delete_data=False).stopped
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_port_of_another_program_is_named_before_anything_is_started(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(AlreadyExistsError, match=f"port {port} .* --port"):
            bring_up(folder, Wish(port=port), lambda text: None)
    assert not (folder / "logs").exists()


def _hold_lock(folder: Path, held: object, release: object) -> None:
    with folder_lock(folder, timeout_seconds=1):
        held.set()  # type: ignore[attr-defined]
        release.wait(30)  # type: ignore[attr-defined]


def test_only_one_process_works_on_a_folder_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=_hold_lock, args=(tmp_path, held, release))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(RefusedError, match=f"pid {other.pid}"), folder_lock(tmp_path, timeout_seconds=0.2):
            pass
    finally:
        release.set()
        other.join(30)
    with folder_lock(tmp_path, timeout_seconds=5):
        assert (tmp_path / ".lock").read_text().strip() == str(os.getpid())


def test_a_purge_deletes_what_is_ours_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    layout = Layout(7070, (1,))
    write_layout(folder, layout)
    for daemon in [*controller_daemons(folder, layout), *node_daemons(folder, layout)]:
        daemon.write_config()
        (daemon.data_dir / "data").write_text("x")
    notes = folder / "notes.txt"
    notes.write_text("mine")
    assert take_down(folder, delete_data=True).left == (notes,)
    assert list(folder.iterdir()) == [notes]


def test_a_purge_of_a_cluster_on_etcd_takes_the_catalog_it_was_moved_from_too(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    on_sqlite = Layout(7070, (1,))
    layout = Layout(7070, (1,), ETCD)
    write_layout(folder, layout)
    moved_from = controller_daemons(folder, on_sqlite)
    everything = [*controller_daemons(folder, layout), *etcd_daemons(folder, layout), *node_daemons(folder, layout)]
    for daemon in [*moved_from, *everything]:
        daemon.write_config()
    assert len({daemon.name for daemon in [*moved_from, *everything]}) == 1 + 2 + 3 + 1
    assert take_down(folder, delete_data=True).left == ()
    assert not folder.exists()


def test_a_purge_removes_the_folder_itself_when_nothing_is_left(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    write_layout(folder, Layout(7070, (1,)))
    assert take_down(folder, delete_data=True).purged
    assert not folder.exists()


def test_the_pointer_is_removed_only_by_its_own_cluster(tmp_path: Path) -> None:
    write_pointer(Pointer("sdrs://127.0.0.1:7070", tmp_path / "a"))
    remove_pointer(tmp_path / "b")
    assert read_pointer() == Pointer("sdrs://127.0.0.1:7070", tmp_path / "a")
    remove_pointer(tmp_path / "a")
    assert read_pointer() is None


@pytest.mark.parametrize("content", ["", "null", "{}", '{"url": "x"}', "\x00"])
def test_a_damaged_pointer_counts_as_none(content: str) -> None:
    pointer_path().parent.mkdir(parents=True)
    pointer_path().write_text(content)
    assert read_pointer() is None


def test_the_folder_is_sdrs_home_when_that_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SDRS_HOME", str(tmp_path / "here"))
    assert default_dir() == tmp_path / "here"
    monkeypatch.delenv("SDRS_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_dir() == tmp_path / ".local" / "share" / "sdrs"


def test_a_lock_on_a_file_that_was_removed_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, flock, tries = tmp_path / ".lock", fcntl.flock, []

    def purged_between_open_and_lock(file: IO[str], operation: int) -> None:
        if not tries:
            lock.unlink()
        tries.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", purged_between_open_and_lock)
    with folder_lock(tmp_path, timeout_seconds=5):
        assert lock.read_text().strip() == str(os.getpid())
    assert len(tries) == 2


def test_a_folder_where_another_up_has_just_begun_is_not_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("1")
    (tmp_path / ".cluster.json.1").write_text("{}")
    assert read_layout(tmp_path) is None


@pytest.mark.parametrize("sealed", ['"sealed":false', '"term":1'])
def test_a_snapshot_is_refused_before_anything_is_made_for_it(tmp_path: Path, sealed: str) -> None:
    file = tmp_path / "snapshot"
    file.write_text('{"format":"sdrs-catalog-1","cluster_id":"c",' + sealed + "}\n")
    with pytest.raises(RefusedError, match=f"sdrs meta rebuild --snapshot {file}"):
        bring_up(tmp_path / "cluster", Wish(etcd=True, import_file=file), lambda text: None)
    assert not (tmp_path / "cluster").exists()
