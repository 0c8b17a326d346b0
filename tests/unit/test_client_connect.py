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


def test_a_single_controller_that_is_not_active_yet_is_waited_for() -> None:
    with serving(TakesOver()) as controller, sdrs.connect(controller.url, timeout_seconds=60) as cluster:
        assert cluster.id == "c"
        assert len(controller.requests) > TakesOver.refusals


def test_one_that_never_becomes_active_is_waited_for_no_longer_than_told() -> None:
    with serving(FakeController()) as controller:
        controller.failures["get_cluster"] = UnavailableError("this controller stands by")
        with pytest.raises(UnavailableError, match="stands by"):
            sdrs.connect(controller.url, timeout_seconds=0.2)


@pytest.mark.parametrize("count", [1, 2])
def test_nobody_is_waited_for_where_nobody_listens(count: int) -> None:
    url = "sdrs://" + ",".join(f"127.0.0.1:{free_port()}" for _ in range(count))
    with pytest.raises(UnavailableError, match="sdrs up"):
        sdrs.connect(url, timeout_seconds=3600)
