"""Every error of the tree crosses the wire unchanged."""

from __future__ import annotations

import pickle

import grpc
import pytest

from sdrs_core.errors import BY_REASON, InternalError, SdrsError, UnavailableError
from sdrs_proto.status import code_of, from_rpc_error, from_status, to_status


@pytest.mark.parametrize("kind", BY_REASON.values(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_as_what_it_was(kind: type[SdrsError]) -> None:
    error = kind("what happened, and what to do", job="j", step=7)
    back = from_status(to_status(error))
    assert type(back) is kind
    assert (back.message, back.facts) == (error.message, {"job": "j", "step": "7"})
    assert code_of(error) is grpc.StatusCode[kind.status]


@pytest.mark.parametrize("kind", BY_REASON.values(), ids=lambda kind: kind.__name__)
def test_an_error_survives_pickling(kind: type[SdrsError]) -> None:
    back = pickle.loads(pickle.dumps(kind("message", fact="x")))
    assert type(back) is kind
    assert (back.message, back.facts) == ("message", {"fact": "x"})


def test_reasons_are_unique_and_a_foreign_status_is_an_internal_error() -> None:
    def walk(kind: type[SdrsError]) -> list[str]:
        return [kind.reason, *(reason for child in kind.__subclasses__() for reason in walk(child))]

    ours = [reason for reason in walk(SdrsError) if reason in BY_REASON]
    assert len(ours) >= len(BY_REASON)
    foreign = to_status(SdrsError("x"))
    del foreign.details[:]
    assert type(from_status(foreign)) is InternalError


@pytest.mark.parametrize(
    ("target", "cause"),
    [("ipv4:127.0.0.1:1", "(Connection refused)"), ("dns:///nowhere.invalid:1", "not found)")],
)
def test_of_a_peer_out_of_reach_the_cause_is_told_and_not_the_way_to_it(target: str, cause: str) -> None:
    with grpc.insecure_channel(target) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/x/y")(b"", timeout=30)
    error = from_rpc_error(caught.value, "node n")
    assert isinstance(error, UnavailableError)
    assert error.message.endswith(cause)
    assert error.message.startswith("node n cannot be reached: is it running, and is the address right? (")
    assert len(error.message) < 120
    assert error.facts["details"] == caught.value.details()


def test_a_call_that_a_stopping_peer_cancelled_can_be_tried_again() -> None:
    class Cancelled:
        def trailing_metadata(self) -> tuple[()]:
            return ()

        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.CANCELLED

        def details(self) -> str:
            return "CANCELLED"

    assert type(from_rpc_error(Cancelled(), "node 1")) is UnavailableError
