"""What a scheduler keeps in the cluster, as clients of real daemons use it: raced for, waited for, across restarts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sdrs
from sdrs import errors
from sdrs.records import Records
from sdrs_core.attempts import Attempt
from sdrs_proto.v1 import schedule_pb2
from tests.support.cluster import LocalCluster
from tests.support.controllers import ReplicatedControl, running_controllers
from tests.support.etcd import needs_etcd, running_etcd
from tests.support.program import Program
from tests.support.states import make_state
from tests.support.waiting import wait_for


@pytest.fixture(scope="module")
def cluster(shared_cluster: LocalCluster) -> Iterator[sdrs.Cluster]:
    with shared_cluster.connect() as connected:
        yield connected


def run_of(number: int, run: str = "job:llm-1a2b") -> Attempt:
    return Attempt(run, number, "test")


def test_two_clients_that_race_for_a_record_never_both_win(shared_cluster: LocalCluster) -> None:
    key, rounds, wins = "schedule/job/raced", 15, []

    def race(name: str) -> None:
        with shared_cluster.connect() as mine:
            for number in range(rounds):
                while True:
                    found = mine.records.get(key)
                    if found is not None and int(found.value.split()[0]) > number:
                        break
                    revision = found.revision if found else 0
                    if mine.records.change(compare={key: revision}, put={key: b"%d %s" % (number + 1, name.encode())}):
                        wins.append((number, name))

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(race, name) for name in ("a", "b")]:
            done.result()
    assert sorted(number for number, _ in wins) == list(range(rounds))


def test_records_are_listed_through_all_pages_and_deleted(cluster: sdrs.Cluster) -> None:
    records = cluster.records
    wanted = {f"schedule/listed/{number:04d}": b"%d" % number for number in range(1100)}
    names = sorted(wanted)
    for start in range(0, len(names), 60):
        part = names[start : start + 60]
        assert records.change(compare=dict.fromkeys(part, 0), put={key: wanted[key] for key in part})
    found = list(records.range("schedule/listed/"))
    assert [record.key for record in found] == names
    assert {record.key: record.value for record in found} == wanted
    first = found[0]
    assert records.change(compare={first.key: first.revision}, delete=[first.key])
    assert records.get(first.key) is None
    assert records.change(compare={first.key: first.revision}, put={first.key: b""}) is None


def test_a_wait_ends_with_a_change_under_its_prefix_and_else_in_time(cluster: sdrs.Cluster) -> None:
    records = cluster.records
    start = records.wait("schedule/waited/", 0, 0)
    assert records.wait("schedule/waited/", start, 0.2) == start
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(records.wait, "schedule/waited/", start, 60.0)
        revision = records.change(compare={"schedule/waited/x": 0}, put={"schedule/waited/x": b"1"})
        assert waiting.result() == revision


def test_a_revision_of_another_history_is_not_waited_for(cluster: sdrs.Cluster) -> None:
    records = cluster.records
    here = records.wait("schedule/", 0, 0)
    assert records.wait("schedule/", here + 1_000_000, 3600) < here + 1_000_000  # at once, or the test times out


def test_refusals_say_what_is_allowed(cluster: sdrs.Cluster) -> None:
    records = cluster.records
    with pytest.raises(errors.InvalidArgumentError, match="schedule/"):
        records.change(compare={}, put={"node/node-1": b"x"})
    with pytest.raises(errors.InvalidArgumentError, match="schedule/"):
        list(records.range(""))
    with pytest.raises(errors.InvalidArgumentError, match="several changes"):
        records.change(compare={}, put={f"schedule/{number}": bytes(250_000) for number in range(60)})
    with pytest.raises(errors.InvalidArgumentError, match="64 are allowed"):
        records.change(compare={}, delete=[f"schedule/{number}" for number in range(65)])
    with pytest.raises(errors.InvalidArgumentError, match="no key of a note"):
        records.post("", b"")


def test_a_posted_note_is_answered_with_another(cluster: sdrs.Cluster) -> None:
    records = cluster.records
    assert records.post("beat/x/1/0", b"one", answer="orders/x/1") is None
    assert records.post("orders/x/1", b"save") is None
    answer = records.post("beat/x/1/0", b"two", answer="orders/x/1")
    assert answer is not None
    assert answer.value == b"save"
    assert 0 <= answer.age_seconds < 60
    records.post("beat/x/1/1", b"three")
    assert [(note.key, note.value) for note in records.notes("beat/x/")] == [
        ("beat/x/1/0", b"two"),
        ("beat/x/1/1", b"three"),
    ]


def test_an_opened_attempt_fences_the_saves_of_the_one_before(cluster: sdrs.Cluster) -> None:
    old = cluster.checkpoints("fenced", attempt=run_of(1))
    assert cluster.open_attempt("fenced", run_of(1)) == 1
    old.save(step=1, state=make_state(1)).wait(timeout=60)
    assert cluster.open_attempt("fenced", run_of(2)) == 2
    assert cluster.open_attempt("fenced", run_of(2)) == 2
    with pytest.raises(errors.StaleAttemptError):
        old.save(step=2, state=make_state(2)).wait(timeout=60)
    with pytest.raises(errors.StaleAttemptError):
        cluster.open_attempt("fenced", run_of(1))
    cluster.checkpoints("fenced", attempt=run_of(2)).save(step=2, state=make_state(2)).wait(timeout=60)


def test_status_counts_jobs_by_state_once_there_are_any(local_cluster: LocalCluster) -> None:
    program = Program(local_cluster.url)
    assert program.json("status")["job_states"] == {}
    assert "jobs " not in program.run("status")
    with local_cluster.connect() as mine:
        values = [b'{"state": "queued", "x": 1}', b'{"state": "running"}', b'{"state": "running"}', b"\xff", b"[]"]
        put = {f"schedule/job/{number}": value for number, value in enumerate(values)}
        assert mine.records.change(compare={}, put={**put, "schedule/queue/x": b"{}"})
    states = program.json("status")["job_states"]
    assert list(states.items()) == [("running", 2), ("queued", 1), ("unreadable", 2)]
    assert "2 running, 1 queued, 2 unreadable" in program.run("status")


def test_records_outlive_the_controller_and_notes_do_not(local_cluster: LocalCluster) -> None:
    with local_cluster.connect(timeout_seconds=60) as mine:
        records = mine.records
        revision = records.change(compare={"schedule/job/x": 0}, put={"schedule/job/x": b"\xff\x00"})
        assert revision
        records.post("beat/x/1/0", b"alive")
        seen = records.wait("schedule/", 0, 0)
        local_cluster.controller.kill()
        local_cluster.controller.start()
        found = records.get("schedule/job/x")
        assert found is not None
        assert (found.value, found.revision) == (b"\xff\x00", revision)
        assert records.notes("") == []
        assert records.wait("schedule/", seen, 60) > seen  # what happened meanwhile nobody watched: look again


def repeat(records: Records, request: schedule_pb2.ChangeRecordsRequest) -> schedule_pb2.ChangeRecordsResponse:
    answer: schedule_pb2.ChangeRecordsResponse = records._process().control.call("change_records", request)
    return answer


@needs_etcd
def test_a_change_is_known_again_after_the_controller_changed_and_a_conflict_stays_one(tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    folder.mkdir()
    with (
        running_etcd(folder) as etcd,
        running_controllers(tmp_path, etcd.endpoints, prefix=f"{secrets.token_hex(4)}/", lease_seconds=5) as pair,
        pair.connect(timeout_seconds=60) as mine,
    ):
        _switch_under_changes(pair, mine)


def _switch_under_changes(pair: ReplicatedControl, mine: sdrs.Cluster) -> None:
    records = mine.records
    asked = schedule_pb2.ChangeRecordsRequest(
        request_id="asked-once",
        compare=[schedule_pb2.ComparedRecord(key="schedule/term", revision=0)],
        put=[schedule_pb2.PutRecord(key="schedule/term", value=b"1 a")],
    )
    first = repeat(records, asked)
    assert first.revision
    term = mine.info().term
    active, _ = pair.roles()
    active.daemon.kill()
    wait_for(lambda: mine.info().term > term, "another controller to lead", 60)
    assert repeat(records, asked).revision == first.revision
    assert records.change(compare={"schedule/term": 0}, put={"schedule/term": b"1 a"}) is None
    second = records.change(compare={"schedule/term": first.revision}, put={"schedule/term": b"2 b"})
    assert second is not None
    assert second > first.revision
