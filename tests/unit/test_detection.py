"""P20: who is judged down, and when nobody is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdrs_core.detection import Heard, effective_suspect_after, heartbeat_interval_seconds, is_flapping, judge
from sdrs_core.failover import Liveness
from sdrs_core.ids import NodeId

NOW = 1000.0
SUSPECT_AFTER = 2.0

UP = Heard(last_seconds=NOW - 0.5, linked=True, refused=False)
BROKEN = Heard(last_seconds=NOW - 0.5, linked=False, refused=False)
KILLED = Heard(last_seconds=NOW - 0.5, linked=False, refused=True)
SILENT = Heard(last_seconds=NOW - 2.1, linked=True, refused=False)
CUT = Heard(last_seconds=NOW - 60.0, linked=False, refused=False)
NEVER = Heard(last_seconds=None, linked=False, refused=False)
KILLED_BEFORE = Heard(last_seconds=None, linked=False, refused=True)


def verdicts(*heard: Heard, leading_for: float = 100.0, telling_for: float = 100.0) -> list[str]:
    nodes = {NodeId(f"node-{number}"): facts for number, facts in enumerate(heard)}
    judged = judge(
        nodes,
        now=NOW,
        leading_since=NOW - leading_for,
        suspect_after_seconds=SUSPECT_AFTER,
        deaf_until=NOW - telling_for,
    )
    assert judged.keys() == nodes.keys()
    return [judged[node].value for node in nodes]


def test_a_refused_connection_counts_at_once() -> None:
    assert verdicts(UP, KILLED) == ["up", "down"]
    assert verdicts(KILLED_BEFORE, leading_for=0.0) == ["down"]


def test_refused_connections_count_even_if_nobody_is_left() -> None:
    assert verdicts(KILLED, KILLED, KILLED) == ["down", "down", "down"]


def test_an_open_stream_outweighs_an_older_refusal() -> None:
    assert verdicts(Heard(last_seconds=NOW, linked=True, refused=True)) == ["up"]


def test_a_stream_that_broke_a_moment_ago_is_no_death() -> None:
    assert verdicts(UP, BROKEN) == ["up", "up"]


def test_silence_counts_after_suspect_after_with_or_without_a_stream() -> None:
    assert verdicts(UP, UP, SILENT, CUT) == ["up", "up", "down", "down"]


def test_silence_counts_only_while_as_many_are_heard() -> None:
    assert verdicts(UP, SILENT) == ["up", "down"]
    assert verdicts(UP, SILENT, SILENT) == ["up", "unknown", "unknown"]


def test_refused_nodes_are_no_part_of_a_blip() -> None:
    assert verdicts(UP, SILENT, KILLED, KILLED) == ["up", "down", "down", "down"]


def test_a_whole_network_blip_demotes_nobody() -> None:
    assert verdicts(SILENT, SILENT, CUT) == ["unknown", "unknown", "unknown"]


def test_a_blip_demotes_nobody_while_it_begins() -> None:
    """All fell silent at the same moment; some had beaten a little earlier than the others."""
    last_beat = Heard(last_seconds=NOW - 1.6, linked=True, refused=False)
    assert verdicts(SILENT, SILENT, last_beat, last_beat) == ["unknown", "unknown", "up", "up"]


def test_a_blip_demotes_nobody_while_it_ends() -> None:
    """The first ones are heard again, the others in a moment."""
    assert verdicts(UP, UP, SILENT, SILENT, telling_for=0.1) == ["up", "up", "unknown", "unknown"]
    assert verdicts(UP, UP, SILENT, SILENT, telling_for=SUSPECT_AFTER) == ["up", "up", "down", "down"]


def test_the_only_node_is_never_judged_by_its_silence() -> None:
    assert verdicts(SILENT) == ["unknown"]


def test_a_node_that_was_never_heard_has_time_to_call_a_new_controller() -> None:
    assert verdicts(UP, NEVER, leading_for=3.9) == ["up", "unknown"]
    assert verdicts(UP, NEVER, leading_for=4.0) == ["up", "down"]


def test_a_new_controller_that_hears_nobody_judges_nobody() -> None:
    assert verdicts(NEVER, NEVER, leading_for=1000.0) == ["unknown", "unknown"]


def test_nodes_that_may_still_call_do_not_make_a_blip() -> None:
    assert verdicts(UP, SILENT, NEVER, NEVER, leading_for=1.0) == ["up", "down", "unknown", "unknown"]


heard_facts = st.builds(
    Heard,
    last_seconds=st.one_of(st.none(), st.floats(min_value=NOW - 10, max_value=NOW)),
    linked=st.booleans(),
    refused=st.booleans(),
)


@settings(deadline=None)
@given(st.lists(heard_facts, max_size=12), st.floats(min_value=0, max_value=20))
def test_never_are_more_silent_nodes_demoted_than_are_heard(heard: list[Heard], leading_for: float) -> None:
    judged = verdicts(*heard, leading_for=leading_for)
    for facts, verdict in zip(heard, judged, strict=True):
        if facts.refused and not facts.linked:
            assert verdict == Liveness.DOWN
        elif facts.last_seconds is not None and NOW - facts.last_seconds <= SUSPECT_AFTER:
            assert verdict == Liveness.UP
        else:
            assert verdict != Liveness.UP
    silent = [verdict for facts, verdict in zip(heard, judged, strict=True) if facts.linked or not facts.refused].count(
        Liveness.DOWN
    )
    assert silent <= judged.count(Liveness.UP)


def test_a_small_cluster_beats_four_times_within_suspect_after() -> None:
    assert heartbeat_interval_seconds(3, 2.0) == 0.5
    assert effective_suspect_after(3, 2.0) == 2.0


def test_ten_thousand_nodes_are_bearable() -> None:
    interval = heartbeat_interval_seconds(10_000, 2.0)
    assert 10_000 / interval <= 2000
    assert effective_suspect_after(10_000, 2.0) >= 4 * interval


def test_an_interval_has_a_lower_end_and_patience_follows() -> None:
    assert heartbeat_interval_seconds(1, 0.01) == 0.05
    assert effective_suspect_after(1, 0.01) == pytest.approx(0.2)


@settings(deadline=None)
@given(st.integers(min_value=0, max_value=100_000), st.floats(min_value=0.01, max_value=600))
def test_patience_is_at_least_four_beats_and_what_was_configured(count: int, suspect_after: float) -> None:
    interval = heartbeat_interval_seconds(count, suspect_after)
    assert interval >= 0.05
    assert count / interval <= 2000 + 1e-6
    assert effective_suspect_after(count, suspect_after) >= max(suspect_after, 4 * interval)


def test_a_node_that_went_down_three_times_of_late_flaps_until_it_was_quiet() -> None:
    assert not is_flapping([], NOW)
    assert not is_flapping([NOW - 20, NOW - 10], NOW)
    downs = [NOW - 200, NOW - 100, NOW - 10]
    assert is_flapping(downs, NOW)
    # The oldest has left the window: twice is not often.
    assert not is_flapping(downs, NOW + 150)
    assert not is_flapping([NOW] * 10, NOW + 300.1)
