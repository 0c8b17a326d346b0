"""The verbs about pools, nodes that leave, disks and repair, against a controller of canned answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sdrs.cli import waiting_for_moves
from sdrs.cli.root import root
from sdrs_core.cluster import NodeState, Pool
from sdrs_core.errors import RefusedError
from sdrs_core.ids import NodeId, PoolName
from sdrs_core.levels import Level
from sdrs_proto.convert import pool_to, save_to
from sdrs_proto.v1 import cluster_pb2, control_pb2
from tests.support.fake_controller import FakeController, make_node, serving
from tests.unit.test_cli_operators import LOST, as_json

PROD = Pool(
    PoolName("prod"),
    Level.L3,
    data_fragments=4,
    parity_fragments=2,
    mirror_pool="fast",
    mirror_ratio=0.25,
    quota_bytes=500 << 30,
    node_ids=(NodeId("node-1"), NodeId("node-2")),
)


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SDRS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SDRS_URL", raising=False)
    monkeypatch.setattr(waiting_for_moves, "_POLL_SECONDS", 0.01)


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with serving(FakeController()) as controller:
        controller.pools.append(
            pool_to(PROD, checkpoint_count=3, used_bytes=100 << 30, mirrored_count=2, mirrored_bytes=25 << 30)
        )
        yield controller


@pytest.fixture
def sdrs(controller: FakeController) -> Any:
    def run(*arguments: str, expect: int = 0) -> Result:
        result = CliRunner().invoke(root, ["--url", controller.url, *arguments])
        assert result.exit_code == expect, f"sdrs {' '.join(arguments)}: {result.exit_code}\n{result.output}"
        return result

    return run


# Pools


def test_an_erasure_coded_pool_is_made_as_it_is_told(controller: FakeController, sdrs: Any) -> None:
    options = ("--level", "L3", "--ec", "4+2", "--mirror-pool", "fast", "--mirror-ratio", "0.25")
    made = sdrs("pool", "create", "p", *options, "--nodes", "node-1, node-2", "--quota", "500GiB", "-o", "json")
    asked = controller.asked("create_pool").pool
    assert (asked.data_fragments, asked.parity_fragments, asked.mirrors) == (4, 2, 1)
    assert (asked.mirror_pool, asked.mirror_ratio, asked.quota_bytes) == ("fast", 0.25, 500 << 30)
    assert list(asked.node_ids) == ["node-1", "node-2"]
    told = as_json(made)
    assert (told["level"], told["ec"], told["mirror_pool"], told["mirror_ratio"]) == ("L3", "4+2", "fast", 0.25)
    assert (told["nodes"], told["quota_bytes"]) == (["node-1", "node-2"], 500 << 30)
    # Pool fast uses all nodes, so these two are in both.
    assert "share node-1, node-2" in json.loads(made.stderr)["warning"]["message"]
    assert as_json(sdrs("pool", "create", "q", "--level", "L2", "-o", "json"))["ec"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--level", "L3", "--ec", "4x2"), "4+2 for example"),
        (("--level", "L3", "--ec", "mirror"), "4+2 for example"),
        (("--level", "L3", "--ec", "4+2", "--mirror-ratio", "2"), "mirror-ratio"),
        (("--level", "L2", "--quota", "much"), "500GiB"),
    ],
)
def test_what_can_never_be_a_pool_is_a_usage_error(sdrs: Any, options: tuple[str, ...], words: str) -> None:
    assert words in sdrs("pool", "create", "p", *options, expect=2).stderr


def test_a_pool_is_shown_with_its_code_mirror_quota_and_nodes(sdrs: Any) -> None:
    listed = sdrs("pool", "list").stdout
    assert "4+2 erasure code, newest 25 % mirrored to fast" in listed
    shown = sdrs("pool", "show", "prod").stdout
    for words in ("500.0 GiB, 20 % used", "node-1, node-2", "2 checkpoints, 25.0 GiB in fast"):
        assert words in shown
    told = as_json(sdrs("pool", "show", "prod", "-o", "json"))
    assert (told["mirrored_count"], told["mirrored_bytes"]) == (2, 25 << 30)


def test_only_what_is_named_of_a_coded_pool_is_changed(controller: FakeController, sdrs: Any) -> None:
    sdrs("pool", "set", "prod", "--ec", "8+3")
    asked = controller.asked("update_pool")
    assert (asked.data_fragments, asked.parity_fragments) == (8, 3)
    assert not any(asked.HasField(name) for name in ("level", "mirrors", "quota_bytes", "mirror_ratio"))
    sdrs("pool", "set", "prod", "--mirror-ratio", "0", "--quota", "0")
    asked = controller.asked("update_pool")
    assert (asked.HasField("mirror_ratio"), asked.mirror_ratio) == (True, 0)
    assert (asked.HasField("quota_bytes"), asked.quota_bytes) == (True, 0)
    sdrs("pool", "set", "fast", "--level", "L3", "--ec", "4+2")
    asked = controller.asked("update_pool")
    assert (asked.level, asked.mirrors, asked.data_fragments) == (cluster_pb2.LEVEL_L3, 1, 4)
    assert "nothing to change" in sdrs("pool", "set", "prod", expect=2).stderr


def test_to_lower_a_pool_asks_and_says_what_it_means(controller: FakeController, sdrs: Any) -> None:
    told = sdrs("pool", "set", "prod", "--level", "L2", expect=2).stderr
    assert 'lowers pool "prod" from L3 to L2' in told
    assert "4+2 survives the loss of any 2" in told
    assert "on one node alone" in sdrs("pool", "set", "prod", "--level", "L1", expect=2).stderr
    assert not [name for name, _ in controller.requests if name == "update_pool"]
    sdrs("pool", "set", "prod", "--level", "L2", "--yes")
    assert controller.asked("update_pool").level == cluster_pb2.LEVEL_L2


def test_pools_are_expanded_and_shrunk_by_names(controller: FakeController, sdrs: Any) -> None:
    sdrs("pool", "expand", "prod", "node-3", "node-4")
    assert list(controller.asked("update_pool").add_node_ids) == ["node-3", "node-4"]
    as_json(sdrs("pool", "shrink", "prod", "node-1", "-o", "json"))
    assert list(controller.asked("update_pool").remove_node_ids) == ["node-1"]
    sdrs("pool", "shrink", "prod", expect=2)


# Nodes


def test_a_drain_is_waited_for_until_nothing_is_left(controller: FakeController, sdrs: Any) -> None:
    controller.held = [(3, 300), (1, 100), (0, 0)]
    assert "node-1 is drained" in sdrs("node", "drain", "node-1").stdout
    assert controller.asked("check_node").question == control_pb2.NODE_QUESTION_SAFE_TO_DESTROY
    assert not controller.asked("drain_node").cancel
    told = as_json(sdrs("node", "drain", "node-1", "-o", "json"))
    assert (told["drained"], told["held_bytes"]) == (True, 0)


def test_a_drain_goes_on_without_anybody_who_waits(controller: FakeController, sdrs: Any) -> None:
    controller.held = [(3, 300)]
    assert "300 B are left" in sdrs("node", "drain", "node-1", "--no-wait").stdout
    told = as_json(sdrs("node", "drain", "node-1", "--wait-at-most", "0", "-o", "json", expect=3))
    assert (told["drained"], told["held_count"], told["draining"]) == (False, 3, False)
    # Nothing seems to be left, but a fresh look says otherwise.
    controller.held = [(0, 0)]
    controller.failures["check_node"] = RefusedError("1 checkpoints have less redundancy")
    sdrs("node", "drain", "node-1", "--wait-at-most", "0", expect=3)


def test_a_drain_is_cancelled(controller: FakeController, sdrs: Any) -> None:
    assert "no longer drained" in sdrs("node", "drain", "node-1", "--cancel").stdout
    assert controller.asked("drain_node").cancel


def test_a_removal_asks_for_the_name_and_tells_what_is_lost(controller: FakeController, sdrs: Any) -> None:
    assert "--yes" in sdrs("node", "remove", "node-1", expect=2).stderr
    assert not [name for name, _ in controller.requests if name == "remove_node"]
    assert "node-1 is removed" in sdrs("node", "remove", "node-1", "--yes").stdout
    assert not controller.asked("remove_node").accept_data_loss
    controller.lost = [save_to(LOST)]
    told = as_json(sdrs("node", "remove", "node-1", "--yes", "--accept-data-loss", "-o", "json"))
    assert controller.asked("remove_node").accept_data_loss
    assert [(save["job"], save["step"]) for save in told["lost"]] == [("llm", 7)]
    assert not told["stopped"], "it is no node of a cluster on this machine"


def test_a_replaced_disk_tells_what_is_lost_with_it(controller: FakeController, sdrs: Any) -> None:
    assert "7 fragments are made anew" in sdrs("disk", "replace", "d1", "--yes").stdout
    assert not controller.asked("replace_disk").accept_data_loss
    controller.lost = [save_to(LOST)]
    told = as_json(sdrs("disk", "replace", "d1", "--yes", "--accept-data-loss", "-o", "json"))
    assert controller.asked("replace_disk").accept_data_loss
    assert [(save["job"], save["step"]) for save in told["lost"]] == [("llm", 7)]


def test_questions_are_answered_with_a_sentence_and_an_exit_code(controller: FakeController, sdrs: Any) -> None:
    assert sdrs("node", "ok-to-stop", "node-1").stdout == "node node-1 may go\n"
    assert controller.asked("check_node").question == control_pb2.NODE_QUESTION_OK_TO_STOP
    told = as_json(sdrs("node", "safe-to-destroy", "node-1", "-o", "json"))
    assert told == {"id": "node-1", "safe": True, "why": "node node-1 may go"}
    assert controller.asked("check_node").question == control_pb2.NODE_QUESTION_SAFE_TO_DESTROY


def test_a_node_is_added_only_to_a_cluster_of_this_machine(sdrs: Any, tmp_path: Path) -> None:
    assert "there is no cluster" in sdrs("node", "add", expect=1).stderr
    assert not (tmp_path / "home").exists()


def test_draining_nodes_are_marked(controller: FakeController, sdrs: Any) -> None:
    controller.nodes = [make_node(1, draining=True), make_node(2)]
    controller.held = [(3, 300)]
    assert [node["draining"] for node in as_json(sdrs("node", "list", "-o", "json"))] == [True, False]
    assert sdrs("node", "list").stdout.splitlines()[1].endswith("draining")
    shown = sdrs("node", "show", "node-1").stdout
    assert "3 fragments, 300 B" in shown
    assert as_json(sdrs("node", "show", "node-1", "-o", "json"))["held_count"] == 3


# Disks


def test_disks_are_listed_with_what_they_hold(controller: FakeController, sdrs: Any) -> None:
    controller.disks[0].held_count, controller.disks[0].held_bytes = 5, 1 << 20
    controller.disks[1].absent = True
    listed = as_json(sdrs("disk", "list", "-o", "json"))
    assert [(disk["id"], disk["node"], disk["held_count"], disk["absent"]) for disk in listed] == [
        ("d1", "node-1", 5, False),
        ("d2", "node-2", 0, True),
        ("d3", "node-3", 0, False),
    ]
    assert "absent" in sdrs("disk", "list").stdout
    assert len(as_json(sdrs("disk", "list", "--node", "node-1", "-o", "json"))) == 1


def test_a_disk_is_drained_and_waited_for(controller: FakeController, sdrs: Any) -> None:
    controller.disks[0].held_count, controller.disks[0].held_bytes = 5, 1 << 20
    assert "is being drained, 1.0 MiB are left" in sdrs("disk", "drain", "d1").stdout
    assert not controller.asked("drain_disk").cancel
    sdrs("disk", "drain", "d1", "--wait", "--wait-at-most", "0", expect=3)
    controller.disks[0].held_count = 0
    assert as_json(sdrs("disk", "drain", "d1", "--wait", "-o", "json"))["drained"]
    sdrs("disk", "drain", "d1", "--cancel")
    assert controller.asked("drain_disk").cancel


def test_a_disk_is_given_up_after_asking(controller: FakeController, sdrs: Any) -> None:
    assert "--yes" in sdrs("disk", "replace", "d1", expect=2).stderr
    told = as_json(sdrs("disk", "replace", "d1", "--yes", "-o", "json"))
    assert told["blob_count"] == 7


# Repair and status


def test_repair_is_shown_and_set(controller: FakeController, sdrs: Any) -> None:
    progress = controller.repair.progress
    progress.waiting_blobs, progress.waiting_bytes, progress.wave_done_bytes = 12, 22 << 27, 12 << 27
    progress.bytes_per_second, progress.remaining_seconds = 210_000_000, 14
    controller.repair.failures.append("llm step 7 rank 0: no source has it")
    shown = sdrs("repair", "status").stdout
    assert "12 blobs, 1.5 GiB of 4.2 GiB, 210 MB/s, about 14s left" in shown
    assert "failed: llm step 7" in shown
    assert "no limit" in shown
    told = as_json(sdrs("repair", "status", "-o", "json"))
    assert (told["bytes_per_second"], told["settings"]) == (210_000_000, {"bytes_per_second": 0, "concurrency": 2})
    changed = as_json(sdrs("repair", "set", "--rate", "200MB", "--concurrency", "4", "-o", "json"))
    assert changed == {"rate_bytes_per_second": 200_000_000, "concurrency": 4}
    assert "no limit" in sdrs("repair", "set", "--rate", "0").stdout
    assert not controller.asked("set_repair").HasField("concurrency")
    sdrs("repair", "set", expect=2)
    sdrs("repair", "set", "--concurrency", "0", expect=2)


def test_status_tells_repairing_from_degraded(controller: FakeController, sdrs: Any) -> None:
    repair = controller.cluster.repair
    repair.waiting_blobs, repair.waiting_bytes, repair.wave_done_bytes = 12, 22 << 27, 12 << 27
    repair.bytes_per_second, repair.remaining_seconds = 210_000_000, 14
    controller.cluster.degraded_blob_count = 12
    told = sdrs("status", expect=3).stdout
    assert "repairing: 12 blobs, 1.5 GiB of 4.2 GiB, 210 MB/s, about 14s left" in told
    status = as_json(sdrs("status", "-o", "json", expect=3))
    assert status["state"] == "repairing"
    assert status["repair"]["remaining_seconds"] == 14
    # A node that is down while its data is made anew is being dealt with too.
    controller.nodes[0] = make_node(1, NodeState.DOWN)
    assert as_json(sdrs("status", "-o", "json", expect=3))["state"] == "repairing"
    controller.cluster.unavailable_count = 1
    assert as_json(sdrs("status", "-o", "json", expect=3))["state"] == "degraded"


def test_what_only_moves_is_no_defect(controller: FakeController, sdrs: Any) -> None:
    repair = controller.cluster.repair
    repair.waiting_blobs = repair.moving_blobs = 7
    controller.nodes = [make_node(1, draining=True), make_node(2)]
    controller.held = [(7, 700)]
    told = sdrs("status").stdout
    assert "healthy" in told
    assert "node node-1 is being drained: 7 fragments, 700 B left" in told
    assert "(7 moving)" in told
    status = as_json(sdrs("status", "-o", "json"))
    assert status["draining"] == [{"id": "node-1", "held_count": 7, "held_bytes": 700}]
    controller.held = [(0, 0)]
    assert "sdrs node remove node-1" in sdrs("status").stdout


def test_a_quota_that_is_nearly_full_is_warned_of_and_one_that_is_full_is_a_defect(
    controller: FakeController, sdrs: Any
) -> None:
    controller.pools[1].used_bytes = int(0.9 * controller.pools[1].quota_bytes)
    assert any("near its quota" in line for line in as_json(sdrs("status", "-o", "json"))["warnings"])
    controller.pools[1].used_bytes = controller.pools[1].quota_bytes
    status = as_json(sdrs("status", "-o", "json", expect=3))
    assert (status["state"], status["pools"][1]["quota_bytes"]) == ("degraded", 500 << 30)


def test_status_tells_how_old_the_last_look_at_all_data_is(controller: FakeController, sdrs: Any) -> None:
    assert "shallow never, deep never" in sdrs("status").stdout
    controller.scrub.deep_done_unix_ms = 1_700_000_000_000
    assert "shallow never, deep " in sdrs("status").stdout
    assert as_json(sdrs("status", "-o", "json"))["scrub"]["deep_done"] == "2023-11-14T22:13:20.000Z"
