from __future__ import annotations

import threading

from sdrs.forks import ForkGate


def test_a_fork_waits_for_the_calls_under_way_and_holds_back_new_ones() -> None:
    gate = ForkGate()
    call = gate.enter()
    about_to_fork, entered = threading.Event(), threading.Event()

    def fork() -> None:
        gate.before_fork()
        about_to_fork.set()

    threading.Thread(target=fork).start()
    assert not about_to_fork.wait(0.1), "the fork did not wait for the call"
    gate.leave(call)
    assert about_to_fork.wait(5)

    def late() -> None:
        with gate.call():
            entered.set()

    threading.Thread(target=late).start()
    assert not entered.wait(0.1), "a call began in the middle of a fork"
    gate.after_fork_in_parent()
    assert entered.wait(5)


def test_a_fork_interrupts_long_polls_also_one_that_was_just_about_to_start() -> None:
    gate = ForkGate()
    interrupted = threading.Event()
    starting = threading.Event()

    def poll() -> None:
        with gate.call() as call:
            starting.set()
            while not gate.is_forking:
                pass
            call.on_fork(interrupted.set)
            interrupted.wait(5)

    thread = threading.Thread(target=poll)
    thread.start()
    assert starting.wait(5)
    gate.before_fork()
    assert interrupted.is_set()
    gate.after_fork_in_parent()
    thread.join(5)


def test_the_child_starts_with_an_open_gate_whatever_held_it_in_the_parent() -> None:
    gate = ForkGate()
    gate.enter()
    gate._changed.acquire()  # a thread of the parent that does not exist in the child
    gate.after_fork_in_child()
    with gate.call():
        assert not gate.is_forking
