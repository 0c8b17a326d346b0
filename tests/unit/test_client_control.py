"""Which controller is asked, for how long, and whose word counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from sdrs.rpc import control as control_module
from sdrs.rpc.channels import Channels
from sdrs.rpc.control import ADDRESS_SECONDS, Control
from sdrs_core.errors import DeadlineExceededError, InternalError, RefusedError, StaleTermError, UnavailableError
from sdrs_proto.limits import CALL_SECONDS
from sdrs_proto.v1.control_pb2 import GetClusterRequest

GONE = UnavailableError("cannot be reached", peer="the controller")
STANDBY = UnavailableError("another controller is active", standby="yes")
FROZEN = DeadlineExceededError("did not answer in time", peer="the controller")
WORD = UnavailableError("pool one has no node that is up")


class Anything:
    def stub(self, *_: object) -> Any:
        return self

    def __getattr__(self, name: str) -> str:
        return name


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Control, list[tuple[str, float]]]]:
    """A control whose controllers answer as told, for ever; and whom it asked, with which deadline."""

    def make(*answers: Any, patience_seconds: float = 0.0) -> tuple[Control, list[tuple[str, float]]]:
        asked: list[tuple[str, float]] = []
        by_address = {f"c{number}:1": answer for number, answer in enumerate(answers)}

        def call_once(method: Any, request: Any, *, timeout_seconds: float, peer: str, long_poll: bool) -> Any:
            address = peer.rpartition(" ")[2]
            asked.append((address, timeout_seconds))
            answer = by_address[address]
            answer = answer(len(asked)) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(control_module, "call_once", call_once)
        return Control(cast(Channels, Anything()), tuple(by_address), patience_seconds), asked

    return make


@pytest.mark.parametrize("error", [GONE, STANDBY, FROZEN, StaleTermError("term 3 is over")])
def test_the_next_controller_is_asked_and_stays_the_first_to_be_asked(asked: Any, error: Exception) -> None:
    control, calls = asked(error, "answer")
    for _ in range(2):
        assert control.call("get_cluster", GetClusterRequest()) == "answer"
    assert [address for address, _ in calls] == ["c0:1", "c1:1", "c1:1"]


def test_a_frozen_controller_is_waited_for_less_when_there_is_another(asked: Any) -> None:
    control, calls = asked(FROZEN, "answer")
    control.call("get_cluster", GetClusterRequest())
    control.call("watch_map", GetClusterRequest(), wait_ms=5000)
    assert [seconds for _, seconds in calls] == [ADDRESS_SECONDS, ADDRESS_SECONDS, ADDRESS_SECONDS + 5]
    alone, calls = asked("answer")
    alone.call("get_cluster", GetClusterRequest())
    assert calls == [("c0:1", CALL_SECONDS)]


@pytest.mark.parametrize("answers", [(WORD, STANDBY), (STANDBY, WORD), (GONE, WORD, STANDBY), (WORD, FROZEN)])
def test_the_active_controllers_word_counts_more_than_that_others_stand_by(asked: Any, answers: Any) -> None:
    control, _ = asked(*answers)
    with pytest.raises(UnavailableError) as caught:
        control.call("begin_save", GetClusterRequest())
    assert caught.value is WORD


def test_all_are_asked_again_while_patience_lasts(asked: Any) -> None:
    control, calls = asked(GONE, lambda count: "answer" if count > 4 else STANDBY, patience_seconds=30)
    assert control.call("get_cluster", GetClusterRequest()) == "answer"
    assert len(calls) >= 5


@pytest.mark.parametrize("error", [RefusedError("unsafe"), InternalError("a defect")])
def test_an_answer_that_is_an_error_is_not_asked_for_elsewhere(asked: Any, error: Exception) -> None:
    control, calls = asked(error, "answer")
    with pytest.raises(type(error)):
        control.call("get_cluster", GetClusterRequest())
    assert len(calls) == 1


def test_a_closed_connection_is_said_to_be_closed() -> None:
    channels = Channels()
    control = Control(channels, ("127.0.0.1:1",), 0.0)
    channels.close()
    with pytest.raises(RefusedError, match="closed"):
        control.call("get_cluster", GetClusterRequest())
