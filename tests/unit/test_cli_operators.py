"""The operators' verbs against a controller of canned answers: what they ask for, what they print, how they exit."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sdrs.cli.pointer import Pointer, write_pointer
from sdrs.cli.root import root
from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.cluster import NodeState
from sdrs_core.errors import RefusedError, UnavailableError
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_proto.convert import save_to
from sdrs_proto.limits import MAX_GIVEN_SNAPSHOT_BYTES
from sdrs_proto.v1 import cluster_pb2, control_pb2
from tests.support.fake_controller import FakeController, make_event, make_group, make_node, serving

LOST = Save(
    save_id=SaveId("s"),
    job=JobName("llm"),
    step=7,
    attempt=1,
    world_size=1,
    pool=PoolName("fast"),
    kind=ContentKind.STATE,
    state=SaveState.COMMITTED,
    level=Level.L2,
    size_bytes=2048,
    created_unix_ms=1,
)


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("SDRS_URL", raising=False)


@pytest.fixture
def controller() -> Iterator[FakeController]:
    with serving(FakeController()) as controller:
        yield controller


@pytest.fixture
def sdrs(controller: FakeController) -> Any:
    def run(*arguments: str, expect: int = 0, input: str | None = None) -> Result:
        result = CliRunner().invoke(root, ["--url", controller.url, *arguments], input=input)
        assert result.exit_code == expect, f"sdrs {' '.join(arguments)}: {result.exit_code}\n{result.output}"
        return result

    return run


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_groups_are_listed_and_shown(controller: FakeController, sdrs: Any) -> None:
    controller.groups = [make_group(problem="node-1 is down, no spare is left")]
    assert as_json(sdrs("group", "list", "-o", "json")) == [
        {
            "id": "fast-1",
            "pool": "fast",
            "epoch": 3,
            "primary": "node-1",
            "members": ["node-1", "node-2"],
            "home": ["node-1", "node-2"],
            "problem": "node-1 is down, no spare is left",
        }
    ]
    assert "no spare is left" in sdrs("group", "list").stdout
    sdrs("group", "list", "--pool", "fast")
    assert controller.asked("list_groups").pool == "fast"
    assert as_json(sdrs("group", "list", "--pool", "other", "-o", "json")) == []

    shown = as_json(sdrs("group", "show", "fast-1", "-o", "json"))
    assert [(node["id"], node["role"], node["pid"], node["epoch"]) for node in shown["nodes"]] == [
        ("node-1", "primary", 1001, 3),
        ("node-2", "replica", 1002, 2),
    ]
    assert [event["epoch"] for event in shown["events"]] == [5, 4]
    text = sdrs("group", "show", "fast-1").stdout
    assert "replica" in text
    assert "took over" in text


def test_a_member_whose_node_is_not_known_any_more_is_shown_as_down(controller: FakeController, sdrs: Any) -> None:
    controller.nodes = [make_node(1)]
    shown = as_json(sdrs("group", "show", "fast-1", "-o", "json"))
    assert (shown["nodes"][1]["id"], shown["nodes"][1]["state"]) == ("node-2", "down")
    sdrs("group", "show", "fast-1")


@pytest.mark.parametrize(
    "arguments",
    [
        ("group", "show", "nobody"),
        ("switchover", "nobody"),
        ("failover", "nobody"),
        ("node", "cordon", "nobody"),
        ("node", "uncordon", "nobody"),
        ("node", "drain", "nobody"),
        ("node", "remove", "nobody", "--yes"),
        ("node", "ok-to-stop", "nobody"),
        ("node", "safe-to-destroy", "nobody"),
        ("disk", "drain", "nobody"),
        ("disk", "replace", "nobody", "--yes"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_not_known_is_told(sdrs: Any, arguments: tuple[str, ...]) -> None:
    assert '"nobody" does not exist' in sdrs(*arguments, expect=1).stderr


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        (("switchover", "fast-1"), "switchover"),
        (("failover", "fast-1"), "failover"),
        (("pause",), "set_automatic"),
        (("resume",), "set_automatic"),
        (("node", "cordon", "node-1"), "set_cordon"),
        (("node", "drain", "node-1"), "drain_node"),
        (("node", "remove", "node-1", "--yes"), "remove_node"),
        (("node", "ok-to-stop", "node-1"), "check_node"),
        (("node", "safe-to-destroy", "node-1"), "check_node"),
        (("disk", "drain", "d1"), "drain_disk"),
        (("disk", "replace", "d1", "--yes"), "replace_disk"),
        (("pool", "shrink", "fast", "node-1"), "update_pool"),
        (("pool", "delete", "fast", "--yes"), "delete_pool"),
        (("meta", "rebuild", "--node", "127.0.0.1:1"), "rebuild_meta"),
        (("meta", "snapshot", "FILE"), "export_meta"),
        (("meta", "export", "FILE", "--yes"), "export_meta"),
        (("meta", "import", __file__), "import_meta"),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value) if isinstance(value, tuple) else None,
)
def test_what_is_unsafe_exits_with_4_and_the_reason(
    controller: FakeController, sdrs: Any, tmp_path: Path, arguments: tuple[str, ...], method: str
) -> None:
    controller.failures[method] = RefusedError("this would leave pool fast with one node: add one first")
    told = sdrs(*(str(tmp_path / "FILE") if word == "FILE" else word for word in arguments), expect=4)
    assert "add one first" in told.stderr
    assert not list(tmp_path.glob("*FILE*")), "no file is left behind"


def test_a_switchover_drains_as_long_as_it_is_told(controller: FakeController, sdrs: Any) -> None:
    assert "node-2 is the primary of fast-1 (epoch 4)" in sdrs("switchover", "fast-1").stdout
    asked = controller.asked("switchover")
    assert (asked.to_node_id, asked.drain_ms) == ("", 30_000)
    moved = as_json(sdrs("switchover", "fast-1", "--to", "node-2", "--drain", "2m", "-o", "json"))
    asked = controller.asked("switchover")
    assert (asked.to_node_id, asked.drain_ms) == ("node-2", 120_000)
    assert (moved["primary"], moved["epoch"]) == ("node-2", 4)
    assert "is not a duration" in sdrs("switchover", "fast-1", "--drain", "soon", expect=2).stderr


def test_a_failover_gives_nothing_up_unless_told(controller: FakeController, sdrs: Any) -> None:
    sdrs("failover", "fast-1", "--to", "node-2")
    asked = controller.asked("failover")
    assert (asked.to_node_id, asked.accept_data_loss) == ("node-2", False)


def test_giving_up_data_asks_first_and_lists_what_is_lost(controller: FakeController, sdrs: Any) -> None:
    controller.lost = [save_to(LOST)]
    assert "--yes" in sdrs("failover", "fast-1", "--accept-data-loss", expect=2).stderr
    assert not [name for name, _ in controller.requests if name == "failover"]
    told = sdrs("failover", "fast-1", "--accept-data-loss", "--yes").stdout
    assert controller.asked("failover").accept_data_loss
    assert "lost: llm step 7 (2.0 KiB)" in told
    lost = as_json(sdrs("failover", "fast-1", "--accept-data-loss", "--yes", "-o", "json"))["lost"]
    assert [(save["job"], save["step"]) for save in lost] == [("llm", 7)]


def test_a_pause_carries_its_reason_and_never_an_empty_one(controller: FakeController, sdrs: Any) -> None:
    assert as_json(sdrs("pause", "--reason", "new switch", "-o", "json")) == {"paused": True, "reason": "new switch"}
    assert (controller.asked("set_automatic").paused, controller.asked("set_automatic").reason) == (True, "new switch")
    # The controller takes an empty reason for not paused.
    sdrs("pause", "--reason", " ")
    assert controller.asked("set_automatic").reason
    assert as_json(sdrs("resume", "-o", "json"))["paused"] is False
    assert not controller.asked("set_automatic").paused


def test_a_cordon_is_set_lifted_and_seen(controller: FakeController, sdrs: Any) -> None:
    assert as_json(sdrs("node", "cordon", "node-1", "-o", "json"))["cordoned"] is True
    assert as_json(sdrs("node", "uncordon", "node-1", "-o", "json"))["cordoned"] is False
    controller.nodes = [make_node(1, cordoned=True), make_node(2, flapping=True)]
    listed = as_json(sdrs("node", "list", "-o", "json"))
    assert [(node["state"], node["cordoned"], node["flapping"]) for node in listed] == [
        ("up", True, False),
        ("up", False, True),
    ]
    lines = sdrs("node", "list").stdout.splitlines()
    assert lines[1].endswith("cordoned")
    assert lines[2].endswith("flapping")
    assert "takes no part in new saves" in sdrs("node", "show", "node-1").stdout


def test_a_cordon_tells_its_reason(controller: FakeController, sdrs: Any) -> None:
    told = as_json(sdrs("node", "cordon", "node-1", "--reason", "new fan", "-o", "json"))
    assert (told["cordoned"], told["cordoned_because"]) == (True, "new fan")
    assert controller.asked("set_cordon").reason == "new fan"
    controller.nodes = [make_node(1, cordoned=True, cordoned_because="new fan"), make_node(2)]
    assert as_json(sdrs("node", "list", "-o", "json"))[0]["cordoned_because"] == "new fan"
    assert sdrs("node", "list").stdout.splitlines()[1].endswith("cordoned: new fan")
    assert "(new fan)" in sdrs("node", "show", "node-1").stdout


def test_history_is_newest_first_and_no_longer_than_asked_for(controller: FakeController, sdrs: Any) -> None:
    controller.events = [make_event(number) for number in range(30, 0, -1)]
    told = as_json(sdrs("history", "--limit", "7", "-o", "json"))
    assert [event["epoch"] for event in told] == [30, 29, 28, 27, 26, 25, 24]
    assert told[0] == {
        "time": "2023-11-14T22:13:20.030Z",
        "kind": "primary_promoted",
        "group": "fast-1",
        "node": "node-2",
        "pool": "fast",
        "epoch": 30,
        "duration_ms": 420,
        "text": "node-2 took over from node-1 (30)",
    }
    sdrs("history", "--group", "fast-1", "--node", "node-2")
    asked = controller.asked("list_events")
    assert (asked.group_id, asked.node_id) == ("fast-1", "node-2")
    assert "420 ms" in sdrs("history", "--limit", "1").stdout
    controller.events = [make_event(1, group_id="", node_id="", pool="", epoch=0, kind="paused")]
    bare = as_json(sdrs("history", "-o", "json"))[0]
    assert (bare["group"], bare["node"], bare["pool"]) == (None, None, None)


def test_history_reads_on_over_pages(controller: FakeController, sdrs: Any) -> None:
    controller.events = [make_event(number) for number in range(2500, 0, -1)]
    assert len(as_json(sdrs("history", "--limit", "2400", "-o", "json"))) == 2400


def test_status_shows_groups_in_trouble_repair_and_what_happened(controller: FakeController, sdrs: Any) -> None:
    controller.groups = [make_group(primary=2, problem="node-1 is down"), make_group()]
    controller.nodes[0] = make_node(1, NodeState.DOWN)
    controller.cluster.degraded_group_count = 1
    controller.cluster.repair.waiting_blobs = 12
    controller.cluster.repair.waiting_bytes = 340 << 20
    controller.cluster.unavailable_count = 2
    controller.events = [make_event(number) for number in range(9, 0, -1)]
    told = sdrs("status", expect=3).stdout
    for words in (
        "2, 1 degraded, 1 away from home",
        "12 blobs, 340.0 MiB to copy",
        "2 checkpoints of which too little is in reach",
        "node-1 is down",
        "Last events",
    ):
        assert words in told
    assert told.count("primary_promoted") == 5
    status = as_json(sdrs("status", "-o", "json", expect=3))
    assert status["state"] == "degraded"
    assert [group["problem"] for group in status["groups"]] == ["node-1 is down"]
    assert status["repair"]["waiting_blobs"] == 12
    assert (status["paused"], status["unavailable_count"], len(status["events"])) == (None, 2, 5)


@pytest.mark.parametrize(
    ("awaited", "words"), [(2, "made elsewhere if their node stays away"), (0, "and nothing can be made of them now")]
)
def test_status_says_what_too_little_redundancy_waits_for(
    controller: FakeController, sdrs: Any, awaited: int, words: str
) -> None:
    controller.cluster.degraded_blob_count = 2
    controller.cluster.repair.awaited_blobs = awaited
    assert f"2 blobs with too little redundancy, {words}" in sdrs("status", expect=3).stdout


def test_a_paused_cluster_is_warned_of_and_healthy(controller: FakeController, sdrs: Any) -> None:
    controller.cluster.paused_because = "new switch"
    told = sdrs("status").stdout
    assert "paused: new switch" in told
    assert "warning: automatic failover is paused (new switch)" in told
    assert as_json(sdrs("status", "-o", "json"))["paused"] == "new switch"


def test_pools_at_l2_have_two_copies_unless_told(controller: FakeController, sdrs: Any) -> None:
    made = as_json(sdrs("pool", "create", "a", "--level", "L2", "-o", "json"))
    assert (made["mirrors"], made["allow_degraded"], made["read_policy"]) == (2, False, "round_robin")
    options = ["--mirrors", "3", "--allow-degraded", "--read-policy", "least-response-time"]
    made = as_json(sdrs("pool", "create", "b", "--level", "L2", *options, "-o", "json"))
    assert (made["mirrors"], made["allow_degraded"], made["read_policy"]) == (3, True, "least_response_time")
    assert as_json(sdrs("pool", "create", "c", "--level", "L1", "-o", "json"))["mirrors"] == 1


def test_only_what_is_named_of_a_pool_is_changed(controller: FakeController, sdrs: Any) -> None:
    sdrs("pool", "set", "fast", "--read-policy", "weighted-response-time", "--no-allow-degraded")
    asked = controller.asked("update_pool")
    assert asked.read_policy == cluster_pb2.READ_POLICY_WEIGHTED_RESPONSE_TIME
    assert asked.HasField("allow_degraded")
    assert not any(asked.HasField(name) for name in ("level", "mirrors", "keep_last"))
    # The number of copies follows the level only when that changes.
    sdrs("pool", "set", "fast", "--level", "L2")
    assert not controller.asked("update_pool").HasField("mirrors")
    sdrs("pool", "set", "fast", "--level", "L1", "--yes")
    assert controller.asked("update_pool").mirrors == 1
    sdrs("pool", "set", "fast", "--mirrors", "3")
    assert controller.asked("update_pool").mirrors == 3


def test_an_export_seals_after_asking_and_replaces_no_file(
    controller: FakeController, sdrs: Any, tmp_path: Path
) -> None:
    file = tmp_path / "catalog"
    assert "--yes" in sdrs("meta", "export", str(file), expect=2).stderr
    assert not [name for name, _ in controller.requests if name == "export_meta"]
    told = sdrs("meta", "export", str(file), "--yes").stdout
    assert controller.asked("export_meta").seal
    assert f"sdrs up --etcd --import {file}" in told
    assert file.read_bytes() == b"catalog of a cluster"
    assert file.stat().st_mode & 0o077 == 0, "the keys of the nodes are in it"
    asked_count = len(controller.requests)
    assert "exists" in sdrs("meta", "snapshot", str(file), expect=1).stderr
    assert not [name for name, _ in controller.requests[asked_count:] if name == "export_meta"]


def test_a_snapshot_seals_nothing_and_half_of_one_is_none(
    controller: FakeController, sdrs: Any, tmp_path: Path
) -> None:
    file = tmp_path / "catalog"
    controller.failures["half_export"] = UnavailableError("the controller is going away")
    assert "going away" in sdrs("meta", "snapshot", str(file), expect=6).stderr
    assert list(tmp_path.iterdir()) == []
    del controller.failures["half_export"]
    assert as_json(sdrs("meta", "snapshot", str(file), "-o", "json")) == {
        "file": str(file),
        "size_bytes": 20,
        "sealed": False,
    }
    assert not controller.asked("export_meta").seal


def test_an_import_sends_the_whole_file(controller: FakeController, sdrs: Any, tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "catalog").write_bytes(content)
    imported = as_json(sdrs("meta", "import", str(tmp_path / "catalog"), "-o", "json"))
    assert imported == {"cluster_id": "imported", "incarnation": 2, "record_count": 9}
    assert b"".join(controller.catalog) == content
    assert len(controller.catalog) > 1, "in pieces that fit a message"


def test_a_rebuild_tells_what_did_not_come_back(controller: FakeController, sdrs: Any) -> None:
    controller.progress = [
        control_pb2.RebuildMetaResponse(stage="reading", done_count=1, total_count=2),
        control_pb2.RebuildMetaResponse(stage="done", done=True, checkpoint_count=4),
    ]
    addresses = ("--node", "127.0.0.1:1", "--node", "127.0.0.1:2")
    assert as_json(sdrs("meta", "rebuild", *addresses, "-o", "json"))["checkpoint_count"] == 4
    assert list(controller.asked("rebuild_meta").node_addresses) == ["127.0.0.1:1", "127.0.0.1:2"]
    controller.progress[0].problems.append("llm step 7: rank 3 is nowhere")
    assert "rank 3 is nowhere" in sdrs("meta", "rebuild", *addresses, expect=3).stderr
    del controller.progress[1]
    assert "before it was done" in sdrs("meta", "rebuild", *addresses, expect=6).stderr


def test_a_rebuild_sends_the_given_snapshot_packed_and_none_that_no_message_takes(
    controller: FakeController, sdrs: Any, tmp_path: Path
) -> None:
    controller.progress = [control_pb2.RebuildMetaResponse(stage="done", done=True, checkpoint_count=4)]
    content = b'{"format":"sdrs-catalog-1"}\n' * 200_000
    (tmp_path / "catalog").write_bytes(content)
    sdrs("meta", "rebuild", "--node", "127.0.0.1:1", "--snapshot", str(tmp_path / "catalog"))
    assert gzip.decompress(controller.asked("rebuild_meta").snapshot) == content
    sdrs("meta", "rebuild", "--node", "127.0.0.1:1")
    assert controller.asked("rebuild_meta").snapshot == b""
    asked_count = len(controller.requests)
    (tmp_path / "large").write_bytes(random.Random(1).randbytes(MAX_GIVEN_SNAPSHOT_BYTES + 1))
    told = sdrs("meta", "rebuild", "--node", "127.0.0.1:1", "--snapshot", str(tmp_path / "large"), expect=2).stderr
    assert str(MAX_GIVEN_SNAPSHOT_BYTES) in told
    assert not [name for name, _ in controller.requests[asked_count:] if name == "rebuild_meta"]


def test_a_rebuild_finds_nodes_of_this_machines_own_cluster_only(
    controller: FakeController, sdrs: Any, tmp_path: Path
) -> None:
    write_pointer(Pointer(controller.url, tmp_path))
    assert "--node" in sdrs("meta", "rebuild", expect=2).stderr
