"""The simulated nodes: which are up, whose GPUs are whose.

The policy is trusted with nothing: a GPU that it gives away twice, or on a node that is down, is a defect that ends the
simulation.
"""

from __future__ import annotations

from sdrs_core.errors import InternalError
from sdrs_scheduler.policy.view import Placement, PolicyNode
from sdrs_scheduler.sim.jobs import SimJob


class SimCluster:
    def __init__(self, node_count: int, gpus_per_node: int) -> None:
        width = len(str(node_count - 1))
        self.nodes = [PolicyNode(f"n{number:0{width}}", gpus_per_node) for number in range(node_count)]
        self.down: set[int] = set()
        self._gpus_per_node = gpus_per_node
        self._number_of_node = {node.name: number for number, node in enumerate(self.nodes)}
        self._used = [0] * node_count  # the GPUs of each node, as bits
        self._jobs: list[dict[str, SimJob]] = [{} for _ in range(node_count)]

    def lose(self, number: int) -> list[SimJob]:
        """The jobs that were there; whoever takes them off goes through ``release``."""
        self.down.add(number)
        node = self.nodes[number]
        self.nodes[number] = PolicyNode(node.name, node.gpus, is_open=False, closed_because="it is down")
        return list(self._jobs[number].values())

    def bring_back(self, number: int) -> None:
        self.down.discard(number)
        node = self.nodes[number]
        self.nodes[number] = PolicyNode(node.name, node.gpus)

    def numbers_of(self, placement: Placement) -> list[int]:
        return [self._number_of_node[name] for name in placement]

    def take(self, job: SimJob, placement: Placement) -> None:
        if len(placement) != job.nodes or any(len(set(gpus)) != job.gpus_per_node for gpus in placement.values()):
            raise InternalError(f'the policy places job "{job.trace.id}" on {dict(placement)}, not as it asked')
        for name, gpus in placement.items():
            number = self._number_of_node[name]
            bits = _bits(gpus)
            if number in self.down or self._used[number] & bits or bits >> self._gpus_per_node:
                raise InternalError(f'the policy gives job "{job.trace.id}" GPUs {gpus} of {name}, which are not free')
            self._used[number] |= bits
            self._jobs[number][job.trace.id] = job
        job.placement = placement

    def release(self, job: SimJob) -> None:
        for name, gpus in job.placement.items():
            number = self._number_of_node[name]
            self._used[number] &= ~_bits(gpus)
            del self._jobs[number][job.trace.id]
        job.placement = {}


def _bits(gpus: tuple[int, ...]) -> int:
    return sum(1 << gpu for gpu in gpus)
