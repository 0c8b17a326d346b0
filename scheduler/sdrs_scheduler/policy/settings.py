"""The knobs of the policy, each with what it does. docs/scheduling-policy.md tells how to choose."""

from __future__ import annotations

from dataclasses import dataclass

ORDERS = ("priority", "fifo", "shortest_left", "least_gpu_seconds_left")


@dataclass(frozen=True, slots=True)
class PolicySettings:
    # Who goes first, one of ORDERS; all but "priority" are there to be compared with in the simulator.
    order: str = "priority"

    # Waiting for so long is worth one point of priority. It has no upper limit: whoever waits long enough is first.
    aging_seconds_per_point: float = 600.0
    # Within so many seconds before its deadline a job gains up to ``deadline_points``.
    deadline_window_seconds: float = 24 * 3600.0
    deadline_points: float = 30.0
    # What a user, or a tenant, loses who has used everything of late; half of it for half of everything.
    user_share_points: float = 20.0
    tenant_share_points: float = 20.0
    # A GPU that is held now counts as much in these shares as one that was used for so long.
    share_horizon_seconds: float = 3600.0
    # What a queue of weight 1 loses that has borrowed all GPUs; weight 2 loses half as much.
    queue_share_points: float = 100.0
    # A running job that uses its GPUs less than this loses up to ``idle_points``.
    idle_utilization: float = 0.2
    idle_points: float = 20.0
    # Who has waited for so long is overdue: if it borrows, it no longer stands behind all that stay within their quota;
    # and if nobody knows when there is room for it, its nodes are drained, whatever could be done in them meanwhile.
    patience_seconds: float = 24 * 3600.0

    # How many of the blocked jobs, first come first, get a reservation that nobody behind them may delay.
    reservations_max: int = 8
    # How many jobs behind the first blocked one are looked at; 0: none overtakes.
    backfill_depth: int = 200

    # Whether jobs of less importance are preempted, and whether lent capacity is taken back.
    preemption: bool = True
    reclaim: bool = True
    # How much more important a job must be than one that it preempts.
    preemption_margin: float = 1.0
    # A job that started less than so long ago is not preempted.
    hysteresis_seconds: float = 60.0
    # What a preemption costs beyond the unsaved work: to stop, to wait, to load.
    restart_seconds: float = 60.0
    # How long a job that was warned is thought to hold its GPUs yet.
    leaving_seconds: float = 60.0
    # For how many blocked jobs victims are looked for in one decision.
    preemption_depth: int = 4

    # Whether ``Decisions.waits`` is filled. It costs a sentence for each job that waits.
    explain: bool = True


DEFAULTS = PolicySettings()
