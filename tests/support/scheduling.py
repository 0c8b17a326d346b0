"""A scheduler in this process, over twins of everything that it speaks with, and a clock that tests turn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from sdrs_scheduler import keys
from sdrs_scheduler.assembly import Parts, Settings, assemble
from sdrs_scheduler.executors.executor import Exit, NodeFacts
from sdrs_scheduler.jobs.job import Attempt, Job, JobState
from sdrs_scheduler.jobs.spec import Backoff, CheckpointWish, JobSpec, Resources, Retry
from sdrs_scheduler.keeping import KeepingSettings
from sdrs_scheduler.ledger import Ledger
from sdrs_scheduler.observing import ObservingSettings
from tests.support.memory_executor import MemoryExecutor, MemoryWorld
from tests.support.memory_records import MemoryRecords
from tests.support.memory_storage import MemoryStorage

TICK_SECONDS = 0.25
MAX_TICKS = 400
# Its commands are understood by the executor's twin: this one goes on until somebody ends it, and minds no signal.
TRAINS = "train"


class FakeClock:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def unix_ms(self) -> int:
        return int(self.seconds * 1000)

    def monotonic(self) -> float:
        return self.seconds


def spec(name: str = "llm", **fields: object) -> JobSpec:
    given: dict[str, object] = {
        "resources": Resources(nodes=1, gpus_per_node=2),
        "retry": Retry(backoff=Backoff(1.0, 10.0)),
        "checkpoint": CheckpointWish(grace_seconds=20.0),
        **fields,
    }
    return JobSpec(name, TRAINS, **given)  # type: ignore[arg-type]


class Stage:
    """What outlives a scheduler, and the scheduler of the moment."""

    def __init__(self, nodes: int = 3, gpus: int = 4, settings: Settings | None = None) -> None:
        self.clock = FakeClock()
        self.records = MemoryRecords(self.clock.monotonic)
        self.world = MemoryWorld(
            {f"n{i}": NodeFacts(f"n{i}", gpus) for i in range(1, nodes + 1)}, clock=self.clock.unix_ms
        )
        self.storage = MemoryStorage(self.clock)
        self.ledger = Ledger(self.records)
        self.settings = settings or Settings(
            observing=ObservingSettings(settle_seconds=1.0),
            keeping=KeepingSettings(interval_seconds=1.0, finished_seconds=1000.0),
            errand_threads=0,
            verify_threads=0,
        )
        self.parts = self.another("a")

    def another(
        self, holder: str, *, is_alone: bool = True, world: MemoryWorld | None = None, home: str = "here"
    ) -> Parts:
        """One more scheduler; with a name of its own it waits for the lease of the first. In a ``world`` of its own it
        knows nothing of the first one's runs.
        """
        executors = {"local": MemoryExecutor(world or self.world, home)}
        return assemble(
            self.records,
            self.storage,
            executors,
            self.clock,
            self.settings,
            holder=holder,
            url="sdrs://test",
            is_alone=is_alone,
        )

    def restart(self) -> None:
        """The scheduler is killed, whatever it was about to do, and started again."""
        self.parts = self.another("a")

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.seconds += TICK_SECONDS
            self.parts.scheduler.tick()

    def until(self, condition: Callable[[], object], what: str) -> None:
        for _ in range(MAX_TICKS):
            if condition():
                return
            self.tick()
        stories = {
            job.value.id: [job.value.state, *(line.text for line in job.value.story)] for job in self.ledger.jobs()
        }
        raise AssertionError(f"ticked {MAX_TICKS} times in vain: {what}; {json.dumps(stories, indent=1)}")

    def submit(self, job: JobSpec | None = None, user: str = "ann") -> str:
        return self.ledger.submit(job or spec(), user, now_unix_ms=self.clock.unix_ms()).id

    def job(self, job_id: str) -> Job:
        return self.ledger.job(job_id).value

    def attempts(self, job_id: str) -> list[Attempt]:
        return [stored.value for stored in self.ledger.attempts(job_id)]

    def run(self, job_id: str) -> str:
        return f"{job_id}.{self.job(job_id).attempt}"

    def is_in(self, job_id: str, *states: JobState) -> bool:
        return self.job(job_id).state in states

    def reach(self, job_id: str, *states: JobState) -> Job:
        self.until(lambda: self.is_in(job_id, *states), f"{job_id} to be {states}")
        return self.job(job_id)

    def running(self, job: JobSpec | None = None, user: str = "ann") -> str:
        job_id = self.submit(job, user)
        self.reach(job_id, JobState.RUNNING)
        return job_id

    def end(self, job_id: str, code: int | None = None, signal: int | None = None, oom: bool = False) -> None:
        """All its processes end like this."""
        run = self.world.runs[self.run(job_id)]
        self.world.end(self.run(job_id), {node: Exit(code, signal, oom) for node in list(run.running)})

    def beat(self, job_id: str, rank: int = 0, **told: object) -> None:
        beat = {"step": None, "rank": rank, "nan_step": None, "saving": False, "utilization": None, **told}
        self.records.post(f"beat/{job_id}/{self.job(job_id).attempt}/{rank}", json.dumps(beat).encode())

    def orders(self, job_id: str) -> dict[str, object]:
        found = self.records.notes(keys.orders(job_id, self.job(job_id).attempt))
        return dict(json.loads(found[0].value)) if found else {}

    def deeds(self, run: str) -> list[str]:
        return [what for what, whom in self.world.deeds if whom == run]

    def set_node(self, name: str, **fields: object) -> None:
        self.world.nodes[name] = replace(self.world.nodes[name], **fields)  # type: ignore[arg-type]
