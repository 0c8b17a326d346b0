"""Every error of the tree crosses the wire unchanged."""

from __future__ import annotations

import pickle

import grpc
import pytest

from sdrs_core.errors import BY_REASON, InternalError, SdrsError
from sdrs_proto.status import code_of, from_status, to_status


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
