"""Whether a node may be stopped for a while, or destroyed: asked before somebody does it."""

from __future__ import annotations

from enum import Enum

from sdrs_core.departures import is_ok_to_stop, is_safe_to_destroy
from sdrs_core.errors import RefusedError
from sdrs_core.ids import NodeId
from sdrs_storaged.control.fresh_look import FreshLook
from sdrs_storaged.control.members import Members


class Question(Enum):
    OK_TO_STOP = "ok to stop"
    SAFE_TO_DESTROY = "safe to destroy"


class NodeQuestions:
    def __init__(self, members: Members, look: FreshLook) -> None:
        self._members = members
        self._look = look

    async def ask(self, node_id: NodeId, question: Question) -> str:
        """Why it is safe, in a sentence. RefusedError if it is not, or if nobody can tell now."""
        self._members.record(node_id)
        without = (await self._look.without(node_id)).facts()
        # After the look: a node that went away meanwhile is not counted on.
        decide = is_ok_to_stop if question is Question.OK_TO_STOP else is_safe_to_destroy
        answer = decide(node_id, self._members.view(), without)
        if not answer.is_safe:
            raise RefusedError(answer.why, node=node_id)
        return answer.why
