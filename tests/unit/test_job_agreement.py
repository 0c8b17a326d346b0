"""Ranks that save at one step without a collective: the real state of each rank, its notes in a dictionary."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

import pytest

from sdrs.job.agreement import MAX_MARGIN_STEPS, Answer, Follower, Leader, Phase, Proposal, Vote
from sdrs.job.beats import Beats
from sdrs.job.causes import Cause, Causes
from sdrs.job.environment import JobFacts
from sdrs.job.notes import Orders
from sdrs.job.rank import Rank
from sdrs.records import Note


def facts_of(rank: int, world_size: int, interval_seconds: float = 0.0) -> JobFacts:
    return JobFacts("llm-ab12", "llm", 1, None, 60.0, "llm", "", "", interval_seconds, "node-1", 0, rank, world_size)


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


# Causes


def test_one_preemption_that_is_told_by_several_ways_counts_once() -> None:
    causes = Causes(0.0, grace_seconds=60.0, now=0.0)
    assert causes.due(5.0) is None
    causes.warn(10.0)
    causes.hear("orders", 777, 10.5)
    assert causes.due(11.0) is Cause.WARNED
    causes.settle(Cause.WARNED, 11.0)
    causes.warn(12.0)
    causes.hear("orders", 777, 12.5)
    causes.hear("rank 3", 12_000, 13.0)
    assert causes.due(14.0) is None


def test_who_survived_the_grace_can_be_warned_again_but_not_by_the_old_orders() -> None:
    causes = Causes(0.0, grace_seconds=60.0, now=0.0)
    causes.hear("orders", 777, 10.0)
    causes.settle(Cause.WARNED, 11.0)
    causes.hear("orders", 777, 100.0)
    assert causes.due(100.0) is None
    causes.hear("orders", 888, 101.0)
    assert causes.due(102.0) is Cause.WARNED


def test_the_interval_counts_from_the_last_save_whoever_wanted_it() -> None:
    causes = Causes(30.0, grace_seconds=60.0, now=0.0)
    assert causes.due(29.0) is None
    assert causes.due(30.0) is Cause.INTERVAL
    causes.saved(25.0)
    assert causes.due(30.0) is None
    causes.warn(31.0)
    causes.settle(Cause.INTERVAL, 40.0)
    assert causes.due(41.0) is Cause.WARNED  # that one is still open


# Alone


def test_one_rank_saves_at_once_and_then_not_until_the_next_cause() -> None:
    clock = Clock()
    rank = Rank(facts_of(0, 1, interval_seconds=30.0), clock)
    assert not rank.should_save(1, None)
    rank.warn()
    assert rank.is_warned
    assert not rank.is_preempted  # not before there is something to leave behind
    assert rank.should_save(2, None)
    assert rank.is_preempted
    assert rank.should_save(2, None)  # the same step, the same answer
    assert not rank.should_save(3, None)
    clock.seconds += 31
    assert rank.should_save(4, None)
    assert not rank.should_save(None, None)


def test_orders_warn_and_set_the_interval() -> None:
    clock = Clock()
    rank = Rank(facts_of(0, 1), clock)
    rank.hear_orders(Orders(save=False, interval_seconds=10.0))
    clock.seconds += 9
    assert not rank.should_save(1, None)
    clock.seconds += 2
    assert rank.should_save(2, None)
    assert not rank.is_warned
    rank.hear_orders(Orders(save=True, deadline_unix_ms=5))
    assert rank.is_warned
    assert rank.should_save(3, None)
    rank.hear_orders(Orders(save=True, deadline_unix_ms=5))
    assert not rank.should_save(4, None)


def test_one_rank_may_ask_for_all() -> None:
    rank = Rank(facts_of(0, 8), Clock())
    rank.warn()
    assert rank.should_save(1, 1)
    assert rank.is_preempted


# Together


class Notes:
    """As a controller keeps them."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def post(self, key: str, value: bytes, answer: str = "") -> Note | None:
        with self._lock:
            self._values[key] = value
            found = self._values.get(answer)
        return None if found is None else Note(answer, found, 0.0)

    def notes(self, prefix: str) -> list[Note]:
        with self._lock:
            return [Note(key, value, 0.0) for key, value in sorted(self._values.items()) if key.startswith(prefix)]

    def lose(self) -> None:
        with self._lock:
            self._values.clear()


@dataclass
class Trained:
    saved: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)


def train_in_lockstep(
    world_size: int, *, steps: int, polls: dict[int, int], warned: tuple[int, ...], seed: int, lose_at: int = 0
) -> list[Trained]:
    """A step of all ranks is over when each has asked. ``polls``: every how many turns a rank looks at the notes.

    Turns are in an order of chance; each rank asks in a thread of its own, for it may wait.
    """
    chance = random.Random(seed)
    clock, notes = Clock(), Notes()
    ranks = [Rank(facts_of(number, world_size), clock) for number in range(world_size)]
    beats = [Beats(facts_of(number, world_size), rank, lambda: notes) for number, rank in enumerate(ranks)]  # type: ignore[arg-type, return-value]
    outcome = [Trained() for _ in ranks]

    def ask(number: int, step: int) -> None:
        if ranks[number].should_save(step, None):
            outcome[number].saved.append(step)
            if ranks[number].is_preempted:
                outcome[number].preempted.append(step)

    with ThreadPoolExecutor(world_size) as pool:
        turn = 0
        for step in range(1, steps + 1):
            if step == 20:
                for number in warned:
                    ranks[number].warn()
            order = chance.sample(range(world_size), world_size)
            asking = []
            for number in order:
                asking.append(pool.submit(ask, number, step))
                turn += 1
                beat = chance.randrange(world_size)
                if turn % polls.get(beat, 1) == 0:
                    beats[beat]._beat()
            if step == lose_at:
                notes.lose()
            while wait(asking, 0.001).not_done:
                for number in chance.sample(range(world_size), world_size):
                    beats[number]._beat()
            for asked in asking:
                asked.result()
            clock.seconds += 0.1
    return outcome


def same_everywhere(outcome: list[Trained]) -> Iterator[tuple[list[int], list[int]]]:
    for trained in outcome:
        yield trained.saved, trained.preempted


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("world_size", [2, 4])
def test_all_ranks_save_at_one_step_whoever_was_warned_and_however_they_look(world_size: int, seed: int) -> None:
    polls = {number: 1 + (7 * number + seed) % 11 for number in range(world_size)}
    warned = ((0,), (world_size - 1,), tuple(range(world_size)))[seed % 3]
    outcome = train_in_lockstep(world_size, steps=100, polls=polls, warned=warned, seed=seed)
    told = list(same_everywhere(outcome))
    assert all(one == told[0] for one in told), f"seed {seed}: {told}"
    assert len(told[0][0]) == 1, f"seed {seed}: {told}"
    assert told[0][1] == told[0][0]  # all know then that they are to leave


def test_notes_that_are_lost_with_their_controller_come_again() -> None:
    for lose_at in range(20, 28):
        outcome = train_in_lockstep(3, steps=80, polls={1: 3, 2: 5}, warned=(0,), seed=lose_at, lose_at=lose_at)
        assert len({tuple(trained.saved) for trained in outcome}) == 1
        assert len(outcome[0].saved) == 1


def ask(leader: Leader, step: int, now: float, cause: Cause | None = Cause.WARNED) -> Answer:
    return leader.ask(step, cause, now, poll_seconds=2.0, unix_ms=1_000)


def test_the_margin_is_by_the_pace_of_the_steps_and_at_least_two() -> None:
    slow, fast = Leader(2), Leader(2)
    for step in range(4):
        ask(slow, step, step * 10.0, None)
        ask(fast, step, step * 0.125, None)
    ask(slow, 4, 40.0)
    ask(fast, 4, 0.5)
    assert slow.proposal
    assert fast.proposal
    assert slow.proposal.step == 4 + 2
    assert fast.proposal.step == 4 + 21  # 2.5 s, and one more


def test_a_rank_that_has_passed_says_so_and_the_next_margin_is_doubled() -> None:
    leader, follower = Leader(2), Follower()
    assert ask(leader, 10, 0.0) is Answer.GO_ON
    assert leader.proposal
    assert leader.proposal.step == 12
    follower.ask(12, 0.0)
    assert follower.hear(leader.proposal)
    assert follower.vote == Vote(passed=leader.proposal.number)
    assert leader.judge({1: follower.vote}) == Proposal(leader.proposal.number, 12, Cause.WARNED, Phase.WITHDRAWN)
    first = leader.proposal
    assert ask(leader, 11, 0.0) is Answer.GO_ON
    assert leader.proposal.step == 11 + 4
    assert leader.proposal.number > first.number
    assert follower.hear(leader.proposal)
    assert follower.vote == Vote(agreed=leader.proposal.number)
    # It is not confirmed by a word for the last one.
    judged = leader.judge({1: Vote(agreed=first.number)})
    assert judged
    assert judged.phase is Phase.OPEN


def test_margins_do_not_grow_for_ever() -> None:
    leader = Leader(2)
    for step in range(40):
        ask(leader, step, step * 0.001)
        assert leader.proposal
        assert leader.proposal.step <= step + MAX_MARGIN_STEPS
        leader.judge({1: Vote(passed=leader.proposal.number)})


def post(leader: Leader, votes: dict[int, Vote] | None = None) -> Proposal:
    """As the thread of the beats does."""
    proposal = leader.judge(votes or {})
    assert proposal
    leader.told(proposal)
    return proposal


def test_nobody_saves_before_all_have_agreed_and_nobody_waits_for_ever() -> None:
    leader = Leader(3)
    ask(leader, 10, 0.0)
    number = post(leader).number
    assert ask(leader, 12, 1.0) is Answer.WAIT
    judged = leader.judge({1: Vote(agreed=number)})
    assert judged == leader.proposal
    assert ask(leader, 12, 2.0) is Answer.WAIT
    assert ask(leader, 12, 12.0) is Answer.GO_ON  # rank 2 was not heard of
    assert leader.proposal.phase is Phase.WITHDRAWN


def test_training_does_not_stand_still_for_a_proposal_that_nobody_can_have_read() -> None:
    leader = Leader(2)
    for step in range(10, 40):
        assert ask(leader, step, float(step)) is Answer.GO_ON


def test_an_interval_is_let_go_when_somebody_does_not_take_part_and_a_warning_never_is() -> None:
    for cause, last in ((Cause.INTERVAL, Answer.GIVE_UP), (Cause.WARNED, Answer.GO_ON)):
        leader, step, now, answers = Leader(2), 0, 0.0, []
        while len(answers) < 3:
            step, now = step + 1, now + 20.0
            ask(leader, step, now, cause)
            if step < post(leader).step:
                continue
            assert ask(leader, step, now, cause) is Answer.WAIT
            answers.append(ask(leader, step, now + 11.0, cause))
        assert answers == [Answer.GO_ON, Answer.GO_ON, last]


def test_ranks_are_told_when_one_of_them_does_not_take_part(caplog: pytest.LogCaptureFixture) -> None:
    clock, notes = Clock(), Notes()
    rank = Rank(facts_of(0, 2, interval_seconds=1.0), clock)
    beats = Beats(facts_of(0, 2, interval_seconds=1.0), rank, lambda: notes)  # type: ignore[arg-type, return-value]
    over = threading.Event()

    def pass_time() -> None:
        while not over.wait(0.001):
            clock.seconds += 1.0
            beats._beat()

    passing = threading.Thread(target=pass_time)
    passing.start()
    try:
        step = 0
        while not caplog.records:
            step += 1
            assert not rank.should_save(step, None)
    finally:
        over.set()
        passing.join()
    assert "not all of its 2 ranks are heard of" in caplog.text


def test_what_may_have_been_read_is_not_withdrawn() -> None:
    leader = Leader(2)
    ask(leader, 10, 0.0)
    told = leader.judge({1: Vote(agreed=post(leader).number)})
    assert told
    assert told.phase is Phase.CONFIRMED
    assert ask(leader, 12, 1.0) is Answer.WAIT  # it is on its way to the others
    assert ask(leader, 12, 12.0) is Answer.WAIT
    leader.told(told)
    assert ask(leader, 12, 12.1) is Answer.SAVE


def test_a_follower_goes_on_when_the_verdict_is_lost_or_the_proposal_is_withdrawn() -> None:
    follower = Follower()
    follower.ask(1, 0.0)
    follower.hear(Proposal(1, 5, Cause.INTERVAL))
    assert follower.ask(5, 1.0) is Answer.WAIT
    follower.hear(Proposal(1, 5, Cause.INTERVAL, Phase.WITHDRAWN))
    assert follower.ask(5, 1.1) is Answer.GO_ON
    follower.hear(Proposal(2, 8, Cause.INTERVAL))
    assert follower.ask(8, 2.0) is Answer.WAIT
    assert follower.ask(8, 33.0) is Answer.GO_ON
    assert not follower.hear(Proposal(2, 8, Cause.INTERVAL, Phase.CONFIRMED))
    assert follower.ask(9, 34.0) is Answer.GO_ON


def test_what_was_saved_is_not_saved_again_though_it_is_told_again() -> None:
    follower = Follower()
    follower.ask(1, 0.0)
    follower.hear(Proposal(7, 5, Cause.INTERVAL))
    follower.hear(Proposal(7, 5, Cause.INTERVAL, Phase.CONFIRMED))
    assert follower.ask(5, 1.0) is Answer.SAVE
    follower.finish()
    assert not follower.hear(Proposal(7, 5, Cause.INTERVAL, Phase.CONFIRMED))
    assert not follower.hear(Proposal(6, 9, Cause.INTERVAL))  # a word from before that
    assert follower.ask(6, 2.0) is Answer.GO_ON
    assert follower.ask(9, 3.0) is Answer.GO_ON


def test_steps_that_are_not_asked_for_do_not_keep_ranks_from_saving_at_the_same_one() -> None:
    leader, follower = Leader(2), Follower()
    ask(leader, 10, 0.0)
    assert leader.proposal
    follower.ask(10, 0.0)
    follower.hear(leader.proposal)  # step 12, and both ask every 5 steps
    told = leader.judge({1: follower.vote})
    assert told
    leader.told(told)
    follower.hear(told)
    assert (ask(leader, 15, 1.0), follower.ask(15, 1.0)) == (Answer.SAVE, Answer.SAVE)
