"""What holds of every decision, over random views and over random lives of a small cluster."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sdrs_scheduler.policy.decide import decide
from sdrs_scheduler.policy.settings import ORDERS, PolicySettings
from sdrs_scheduler.policy.view import Ask, Placement, PolicyNode, Queue
from tests.support.policy import (
    NOW,
    TinyCluster,
    an_ask,
    check,
    nodes_with_room,
    random_ask,
    random_nodes,
    random_queues,
    random_view,
    some_nodes,
)

# A busy machine is slow to draw views and to judge them: that is no failure.
patient = settings(
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # A smaller seed is not a smaller example.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
few = settings(patient, max_examples=20)
# Seeds, not hypothesis' own randomness: a view has hundreds of choices, and drawing each of them is slow.
seeds = st.integers(min_value=0, max_value=2**32)

some_settings = st.sampled_from(
    [
        PolicySettings(),
        PolicySettings(preemption=False, reclaim=False),
        PolicySettings(reservations_max=0),
        PolicySettings(backfill_depth=0, hysteresis_seconds=0),
        PolicySettings(backfill_depth=3, preemption_depth=1, reservations_max=1),
        *(PolicySettings(order=order) for order in ORDERS),
    ]
)


@patient
@given(seeds, some_settings)
def test_no_decision_gives_away_what_is_not_free_or_not_allowed(seed: int, chosen: PolicySettings) -> None:
    view = random_view(Random(seed))
    check(view, decide(view, chosen), chosen)


@patient
@given(seeds, some_settings)
def test_the_same_view_gives_the_same_decisions_in_whichever_order_it_is_told(
    seed: int, chosen: PolicySettings
) -> None:
    rng = Random(seed)
    view = random_view(rng)
    shuffled = replace(
        view,
        nodes=rng.sample(view.nodes, len(view.nodes)),
        pending=rng.sample(view.pending, len(view.pending)),
        running=rng.sample(view.running, len(view.running)),
        queues=dict(reversed(view.queues.items())),
    )
    first, again = decide(view, chosen), decide(shuffled, chosen)
    assert (first.starts, first.preempts) == (again.starts, again.preempts)
    assert {key: wait.reason for key, wait in first.waits.items()} == {
        key: wait.reason for key, wait in again.waits.items()
    }


@patient
@given(seeds, some_settings)
def test_without_sentences_the_decisions_are_the_same(seed: int, chosen: PolicySettings) -> None:
    view = random_view(Random(seed))
    told, silent = decide(view, chosen), decide(view, replace(chosen, explain=False))
    assert (told.starts, told.preempts) == (silent.starts, silent.preempts)
    assert silent.waits == {}


@patient
@given(seeds)
def test_victims_make_room_for_the_whole_gang_and_none_of_them_is_needless(seed: int) -> None:
    # Without reservations what a job may count on is exactly what is there when those who leave are gone.
    chosen = PolicySettings(reservations_max=0, preemption_depth=1, hysteresis_seconds=0)
    view = random_view(Random(seed))
    view = replace(view, pending=[replace(job, is_promised=False) for job in view.pending])
    decisions = decide(view, chosen)
    asks = {job.ask.id: job.ask for job in view.pending}
    victims = {preempt.job_id for preempt in decisions.preempts}
    if not victims:
        return
    [for_job_id] = {preempt.for_job_id for preempt in decisions.preempts}
    ask = asks[for_job_id]
    started: list[tuple[Ask, Placement]] = [(asks[start.job_id], start.placement) for start in decisions.starts]

    def fits_without(gone: set[str]) -> bool:
        stay = [job for job in view.running if not job.is_leaving and job.ask.id not in gone]
        held = [(job.ask, job.placement) for job in stay] + started
        limit = view.queues[ask.queue].max_gpus if ask.queue in view.queues else None
        in_queue = sum(other.nodes * other.gpus_per_node for other, _ in held if other.queue == ask.queue)
        is_below = limit is None or in_queue + ask.nodes * ask.gpus_per_node <= limit
        return is_below and len(nodes_with_room(ask, view.nodes, held)) >= ask.nodes

    assert fits_without(victims)
    for victim in victims:
        assert not fits_without(victims - {victim}), f"{victim} would not have had to go"


def _earliest(ask: Ask, nodes: list[PolicyNode], held: list[tuple[Ask, Placement, float]]) -> float:
    """When ``ask`` could start if nobody else did: the long way."""
    for at in sorted({0.0, *(end for _, _, end in held)}):
        still_there = [(other, placement) for other, placement, end in held if end > at]
        if len(nodes_with_room(ask, nodes, still_there)) >= ask.nodes:
            return at
    raise AssertionError("it fits when all are gone")


@patient
@given(seeds)
def test_who_overtakes_never_delays_the_first_who_is_blocked(seed: int) -> None:
    chosen = PolicySettings(order="fifo", preemption=False, reclaim=False)
    view = random_view(Random(seed))
    view = replace(view, queues={}, pending=[replace(job, is_promised=False) for job in view.pending])
    view = replace(
        view,
        pending=[replace(job, ask=replace(job.ask, preemptible=True)) for job in view.pending],
        running=[replace(job, is_leaving=False) for job in view.running],
    )
    decisions = decide(view, chosen)
    blocked = [job.ask for job in view.pending if job.ask.id in decisions.waits]
    blocked = [ask for ask in blocked if "more must come free" in decisions.waits[ask.id].sentence]
    if not blocked:
        return
    first = min(blocked, key=lambda ask: (ask.submitted_unix, ask.id))
    # Nobody knows when those end that tell no length; those that start now end later still.
    ahead: list[tuple[Ask, Placement, float]] = [
        (job.ask, job.placement, 1e9 if job.ask.left_seconds is None else job.ask.left_seconds) for job in view.running
    ]
    behind = []
    asks = {job.ask.id: job.ask for job in view.pending}
    for start in decisions.starts:
        ask = asks[start.job_id]
        end = 2e9 if ask.left_seconds is None else ask.left_seconds
        is_ahead = (ask.submitted_unix, ask.id) < (first.submitted_unix, first.id)
        (ahead if is_ahead else behind).append((ask, start.placement, end))
    nodes = list(view.nodes)
    assert _earliest(first, nodes, ahead + behind) == _earliest(first, nodes, ahead)


@few
@given(seeds)
def test_in_a_random_life_every_decision_is_right_and_all_work_gets_done(seed: int) -> None:
    rng = Random(seed)
    nodes = [replace(node, is_open=True) for node in random_nodes(rng)]
    queues = {queue.name: replace(queue, is_open=True) for queue in random_queues(rng)}
    cluster = TinyCluster(nodes, queues)
    feasible = set()
    for number in range(40):
        ask = replace(random_ask(rng, number, nodes), preemptible=True)
        limit = queues[ask.queue].max_gpus if ask.queue in queues else None
        is_small = limit is None or ask.nodes * ask.gpus_per_node <= limit
        if is_small and len(nodes_with_room(ask, nodes, [])) >= ask.nodes:
            feasible.add(ask.id)
        length = ask.left_seconds or rng.choice([100.0, 3000.0])
        cluster.submit(replace(ask, submitted_unix=cluster.now), length)
        if rng.random() < 0.5:
            cluster.step(rng.choice([10.0, 100.0, 1000.0]))
    for _ in range(400):
        if not feasible & {*cluster.pending, *cluster.running}:
            break
        cluster.step(1000.0)
    assert feasible <= set(cluster.started_at)
    assert not feasible & set(cluster.pending)


@few
@given(seeds, st.sampled_from([4, 8]), st.booleans())
def test_a_large_unimportant_gang_starts_though_others_keep_coming(seed: int, gpus: int, preemption: bool) -> None:
    rng = Random(seed)
    chosen = PolicySettings(aging_seconds_per_point=60, patience_seconds=3000, preemption=preemption, explain=False)
    cluster = TinyCluster(some_nodes(4), settings=chosen)
    cluster.submit(an_ask("filler", 8, 3, priority=90), 500)
    cluster.step(10)
    cluster.submit(an_ask("gang", gpus, 4, priority=0, submitted_unix=cluster.now), 100)
    for number in range(1000):
        for part in range(3):
            length = rng.choice([300.0, 900.0])
            ask = an_ask(
                f"small{number}.{part}",
                rng.choice([1, 2, 4, 8]),
                priority=rng.randint(50, 100),
                submitted_unix=cluster.now,
                left_seconds=rng.choice([None, length]),
            )
            cluster.submit(ask, length)
        cluster.step(100)
        if "gang-id" in cluster.started_at:
            break
    # 100 points of priority are made up for in 6,000 seconds. Who came before and is more important is ahead until
    # then, and there is twice as much of that as the cluster gets done in the time.
    assert cluster.started_at["gang-id"] - NOW < 20_000


@few
@given(seeds)
def test_a_borrower_starts_though_the_owner_of_all_quota_never_runs_dry(seed: int) -> None:
    rng = Random(seed)
    queues = {"prod": Queue("prod", gpus=16), "guests": Queue("guests")}
    chosen = PolicySettings(aging_seconds_per_point=60, patience_seconds=3000, explain=False)
    cluster = TinyCluster(some_nodes(2), queues, chosen)
    for number in range(300):
        for part in range(2):
            ask = an_ask(f"own{number}.{part}", rng.choice([4, 8]), queue="prod", submitted_unix=cluster.now)
            cluster.submit(ask, 300)
        if number == 1:
            cluster.submit(an_ask("guest", 8, 2, queue="guests", submitted_unix=cluster.now), 100)
        cluster.step(100)
        if "guest-id" in cluster.started_at:
            break
    assert 3000 <= cluster.started_at["guest-id"] - NOW < 10_000


@few
@given(seeds)
def test_preemption_comes_to_rest_when_nothing_else_happens(seed: int) -> None:
    rng = Random(seed)
    nodes = [replace(node, is_open=True) for node in random_nodes(rng)]
    queues = {queue.name: replace(queue, is_open=True) for queue in random_queues(rng)}
    cluster = TinyCluster(nodes, queues)
    for number in range(25):
        # Urgency changes with time, and so may who is more important.
        ask = replace(random_ask(rng, number, nodes), deadline_unix=0.0, left_seconds=None)
        cluster.submit(ask, 1e9)
        if rng.random() < 0.4:
            cluster.step(100)
    for _ in range(60):
        cluster.step(100)
    before = cluster.preempt_count
    for _ in range(60):
        cluster.step(100)
    assert cluster.preempt_count == before
