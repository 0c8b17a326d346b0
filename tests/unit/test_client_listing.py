"""What is listed comes newest first, also what lies in the trash, which a controller lists last and by its ids."""

from __future__ import annotations

from dataclasses import replace

import sdrs
from sdrs_core.checkpoints import ContentKind, Save, SaveState
from sdrs_core.ids import JobName, PoolName, SaveId
from sdrs_core.levels import Level
from sdrs_proto.convert import save_to
from sdrs_proto.v1 import control_pb2 as pb
from sdrs_proto.v1.checkpoint_pb2 import Checkpoint
from tests.support.fake_controller import FakeController, serving

SAVE = Save(SaveId("0"), JobName("j"), 1, 1, 1, PoolName("p"), ContentKind.STATE, SaveState.COMMITTED, Level.L1, 1, 0)


class Listing(FakeController):
    """A page of what is there, then one with the trash as well."""

    def list_checkpoints(self, request: pb.ListCheckpointsRequest) -> pb.ListCheckpointsResponse:
        def saves(*of: tuple[int, int, SaveState]) -> list[Checkpoint]:
            return [
                save_to(replace(SAVE, save_id=SaveId(f"{n:032x}"), step=step, attempt=attempt, state=state))
                for n, (step, attempt, state) in enumerate(of)
            ]

        if not request.page_token:
            page = saves((30, 2, SaveState.COMMITTED), (30, 1, SaveState.SET_ASIDE))
            return pb.ListCheckpointsResponse(checkpoints=page, next_page_token="more")
        page = saves(
            (10, 1, SaveState.COMMITTED),
            (5, 1, SaveState.DELETED),
            (20, 1, SaveState.DELETED),
            (20, 2, SaveState.ABORTED),
            (40, 1, SaveState.ABORTED),
        )
        return pb.ListCheckpointsResponse(checkpoints=page)


def test_all_states_are_listed_newest_first() -> None:
    with serving(Listing()) as controller, sdrs.connect(controller.url) as cluster:
        found = cluster.checkpoints("j").list(all_states=True)
    assert [(save.step, save.attempt) for save in found] == [
        (40, 1),
        (30, 2),
        (30, 1),
        (20, 2),
        (20, 1),
        (10, 1),
        (5, 1),
    ]
