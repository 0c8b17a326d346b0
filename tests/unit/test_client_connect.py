"""The first contact with a cluster: who is waited for, and who is not."""

from __future__ import annotations

import pytest

import sdrs
from sdrs_core.errors import UnavailableError
from sdrs_proto.v1 import control_pb2
from tests.support.cluster import free_port
from tests.support.fake_controller import FakeController, serving


class TakesOver(FakeController):
    """Stands by at first, and becomes the active one while it is asked again and again."""

    refusals = 2

    def get_cluster(self, request: control_pb2.GetClusterRequest) -> control_pb2.GetClusterResponse:
        if len(self.requests) <= self.refusals:
            raise UnavailableError("this controller stands by")
        return super().get_cluster(request)


def test_of_several_controllers_the_one_that_takes_over_is_waited_for() -> None:
    with serving(TakesOver()) as controller:
        url = f"sdrs://127.0.0.1:{free_port()},{controller.url.removeprefix('sdrs://')}"
        with sdrs.connect(url, timeout_seconds=60) as cluster:
            assert cluster.id == "c"
        assert len(controller.requests) > TakesOver.refusals


def test_a_single_controller_that_refuses_is_told_at_once() -> None:
    with serving(TakesOver()) as controller:
        with pytest.raises(UnavailableError, match="stands by"):
            sdrs.connect(controller.url, timeout_seconds=60)
        assert len(controller.requests) == 1


def test_nobody_is_waited_for_where_nobody_listens() -> None:
    url = f"sdrs://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with pytest.raises(UnavailableError, match="sdrs up"):
        sdrs.connect(url, timeout_seconds=3600)
