"""What can be seen of jobs, nodes and checkpoints, kept up to date by errands: the loop itself waits for nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from sdrs_core.errors import SdrsError, UnavailableError
from sdrs_scheduler import keys
from sdrs_scheduler.beats import Beat, Pulse, parse_beat
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.errands import Errands, Outcome
from sdrs_scheduler.executors.executor import Executor, NodeFacts, RunFacts
from sdrs_scheduler.jobs.classify import (
    EXIT_NEVER_RESTART,
    EXIT_PERMANENT,
    EXIT_REQUEUE,
    EXIT_TRANSIENT,
    Evidence,
)
from sdrs_scheduler.jobs.job import Attempt, Job, JobState
from sdrs_scheduler.jobs.resume import Generation
from sdrs_scheduler.jobs.sight import Sight
from sdrs_scheduler.log_search import search_log
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.record_store import RecordStore
from sdrs_scheduler.storage import Storage

log = get_log("observing")

_LOG_TAIL_BYTES = 64 << 10
# Beats were not read for so long, by our own fault or the controller's: their senders are not to blame.
_DEAF_AFTER_SECONDS = 5.0
# The first that is listed failed first: 0 means that all are.
_TELLING_EXIT_CODES = (0, EXIT_REQUEUE, EXIT_NEVER_RESTART, EXIT_TRANSIENT, EXIT_PERMANENT)


@dataclass(frozen=True, slots=True)
class ObservingSettings:
    poll_seconds: float = 0.2
    beat_seconds: float = 1.0
    generation_seconds: float = 2.0
    # I10: of many jobs each is looked at less often, so that the controller is not asked more than this.
    max_generations_per_second: float = 25.0
    # While a preempted job's last checkpoint is waited for.
    farewell_seconds: float = 0.3
    # After the end of a run, until a node that died with it is known to be down.
    settle_seconds: float = 3.0
    # Trouble of the storage so long before the end of a run may be its cause.
    trouble_seconds: float = 30.0


class Observer:
    def __init__(
        self,
        records: RecordStore,
        executors: Mapping[str, Executor],
        storage: Storage,
        errands: Errands,
        clock: Clock,
        settings: ObservingSettings,
    ) -> None:
        self._records = records
        self._executors = executors
        self._storage = storage
        self._errands = errands
        self._clock = clock
        self._settings = settings
        self.forget()

    def forget(self) -> None:
        """Start anew, as one that was just started."""
        # The nodes of each executor, by name; an executor that did not answer yet is not in it.
        self.nodes: dict[str, dict[str, NodeFacts]] = {}
        self.cordoned: Mapping[str, str] = {}
        # When the question was asked that ``cordoned`` answers; it counts only for what was before.
        self.cordons_asked = float("-inf")
        self.generations: dict[str, tuple[Generation, ...]] = {}
        self.launch_errors: dict[str, str] = {}
        # What passes, perhaps: it is tried again.
        self.launch_problems: dict[str, str] = {}
        # By job, the save that was the newest: whether it is as durable as the job wants.
        self._durable: dict[str, tuple[str, bool]] = {}
        self._facts: dict[str, RunFacts] = {}
        # What a poll that began before this moment says of a run is out of date: something was done to it since.
        self._acted: dict[str, float] = {}
        self._pulses: dict[str, Pulse] = {}
        self._evidence: dict[str, Evidence] = {}
        # When the end of a run was seen first.
        self._ended: dict[str, int] = {}
        self._looked: dict[str, float] = {}
        # When beats were last read. After a while without, nobody may be said to be silent.
        self._listened = float("-inf")

    def look(self, active: Iterable[tuple[Job, Attempt]]) -> None:
        """Send for what is due; what comes back is seen at the next look."""
        launched = [
            (job, attempt)
            for job, attempt in active
            if job.state in (JobState.STARTING, JobState.RUNNING, JobState.CHECKPOINTING)
        ]
        for name, executor in self._executors.items():
            runs = [attempt.run for job, attempt in launched if attempt.executor == name]
            self._every(f"poll:{name}", self._settings.poll_seconds, partial(self._poll, name, executor, runs))
        self._every("cordons", self._settings.generation_seconds, self._look_at_cordons)
        if launched:
            wanted = {attempt.run for _, attempt in launched}
            self._every("beats", self._settings.beat_seconds, partial(self._listen, wanted))
        usual_seconds = max(
            self._settings.generation_seconds, len(launched) / self._settings.max_generations_per_second
        )
        for job, _ in launched:
            seconds = self._settings.farewell_seconds if job.state is JobState.CHECKPOINTING else usual_seconds
            self._every(f"generations:{job.id}", seconds, partial(self._look_at_generations, job))

    def sight(self, job: Job, attempt: Attempt | None) -> Sight:
        now_ms = self._clock.unix_ms()
        if attempt is None or not job.state.has_nodes:
            return Sight(now_ms)
        run = attempt.run
        pulse = self._pulses.get(run, Pulse())
        newest = max(self.generations.get(job.id, ()), key=lambda found: found.committed_unix_ms, default=None)
        return Sight(
            now_ms,
            launch_problem=self.launch_problems.get(run, ""),
            home=self._executors[attempt.executor].home if attempt.executor in self._executors else "",
            run=None if self._errands.is_busy(f"run:{run}") else self._facts.get(run),
            evidence=self._evidence.get(run),
            step=pulse.step,
            nan_step=pulse.nan_step,
            utilization=pulse.utilization,
            hang=pulse.hang(job.spec.hang, self._clock.monotonic()) if self._is_listening() else "",
            newest=newest,
            is_newest_durable=newest is not None and self._durable.get(job.id) == (newest.save_id, True),
            launch_error=self.launch_errors.get(run, ""),
            down_nodes=self._down(attempt),
        )

    def acted_on(self, run: str) -> None:
        """Something was done to the run: what was seen before is out of date."""
        self._acted[run] = self._clock.monotonic()
        self._facts.pop(run, None)
        self._looked = {key: at for key, at in self._looked.items() if not key.startswith("poll:")}

    def drop(self, job: Job, attempt: Attempt) -> None:
        """The run is over and on record."""
        run = attempt.run
        for known in (
            self._facts,
            self._pulses,
            self._evidence,
            self.launch_errors,
            self.launch_problems,
            self._acted,
            self._ended,
        ):
            known.pop(run, None)
        self.generations.pop(job.id, None)
        self._durable.pop(job.id, None)
        self._looked.pop(f"generations:{job.id}", None)

    def gather(self, job: Job, attempt: Attempt) -> None:
        """Look for what tells why a run ended, once nodes that died with it had time to be missed."""
        run = attempt.run
        facts = self._facts.get(run)
        seen_ms = self._ended.setdefault(run, self._clock.unix_ms())
        ended_ms = (facts.ended_unix_ms if facts else 0) or seen_ms
        waits = facts is not None and not _is_clear(facts) and attempt.warned_unix_ms == 0
        if waits and self._clock.unix_ms() - seen_ms < self._settings.settle_seconds * 1000:
            return
        executor = self._executors[attempt.executor]
        # What happened before it began is not why it ended.
        since_ms = max(attempt.started_unix_ms, ended_ms - int(self._settings.trouble_seconds * 1000))
        down = self._down(attempt)
        lost = {node: down.get(node, "") for node in (facts.lost_nodes if facts else ())}
        bad_gpus = self._bad_gpus(attempt)
        patterns = [policy.match for policy in job.spec.failure_policies]

        def work() -> tuple[Evidence, tuple[Generation, ...]]:
            log_tail = executor.log_tail(run, _LOG_TAIL_BYTES)
            searched = search_log(patterns, log_tail)
            evidence = Evidence(
                exits=dict(facts.exits) if facts else {},
                lost_nodes=lost,
                down_nodes=down,
                bad_gpus=bad_gpus,
                log_tail=log_tail,
                pattern_matches=searched.found,
                pattern_failures=searched.failed,
                storage_events=self._storage.trouble_since(since_ms),
                preempted_by_executor=facts.preempted if facts else False,
                detail=facts.detail if facts else "",
            )
            return evidence, self._storage.generations(job.spec.history)

        def done(outcome: Outcome[tuple[Evidence, tuple[Generation, ...]]]) -> None:
            if outcome.value is None:
                log.warning("end_not_explained_yet", run=run, why=str(outcome.error))
                return
            self._evidence[run], self.generations[job.id] = outcome.value

        self._errands.run(f"gather:{run}", work, done)

    def _every(self, key: str, seconds: float, begin: Callable[[], None]) -> None:
        now = self._clock.monotonic()
        if now - self._looked.get(key, float("-inf")) >= seconds and not self._errands.is_busy(key):
            self._looked[key] = now
            begin()

    def _poll(self, name: str, executor: Executor, runs: list[str]) -> None:
        begun = self._clock.monotonic()

        def done(outcome: Outcome[tuple[tuple[NodeFacts, ...], Mapping[str, RunFacts]]]) -> None:
            if outcome.value is None:
                _complain("executor_does_not_answer", outcome.error, executor=name)
                return
            nodes, facts = outcome.value
            self.nodes[name] = {node.name: node for node in nodes}
            self._facts.update({run: seen for run, seen in facts.items() if self._acted.get(run, -1.0) < begun})

        self._errands.run(f"poll:{name}", lambda: (executor.nodes(), executor.poll(runs)), done)

    def _look_at_cordons(self) -> None:
        asked = self._clock.monotonic()

        def done(outcome: Outcome[Mapping[str, str]]) -> None:
            if outcome.value is not None:
                self.cordoned, self.cordons_asked = outcome.value, asked

        self._errands.run("cordons", self._storage.cordoned_nodes, done)

    def _listen(self, wanted: set[str]) -> None:
        def done(outcome: Outcome[dict[str, list[Beat]]]) -> None:
            now = self._clock.monotonic()
            if outcome.value is None:
                _complain("beats_not_heard", outcome.error)
                return
            if not self._is_listening():
                for pulse in self._pulses.values():
                    pulse.controller_was_away(now)
            self._listened = now
            for run, beats in outcome.value.items():
                self._pulses.setdefault(run, Pulse()).take(beats, now)

        self._errands.run("beats", lambda: self._read_beats(wanted), done)

    def _is_listening(self) -> bool:
        return self._clock.monotonic() - self._listened < _DEAF_AFTER_SECONDS

    def _read_beats(self, wanted: set[str]) -> dict[str, list[Beat]]:
        """Of these runs; notes of others stay behind when they end."""
        by_run: dict[str, list[Beat]] = {}
        for note in self._records.notes(keys.BEATS):
            parts = note.key.split("/")
            beat = parse_beat(note)
            if len(parts) == 4 and beat is not None and (run := f"{parts[1]}.{parts[2]}") in wanted:
                by_run.setdefault(run, []).append(beat)
        return by_run

    def _look_at_generations(self, job: Job) -> None:
        def work() -> tuple[tuple[Generation, ...], tuple[str, bool]]:
            found = self._storage.generations(job.spec.history)
            newest = max(found, key=lambda generation: generation.committed_unix_ms, default=None)
            if newest is None:
                return found, ("", False)
            return found, (newest.save_id, newest.level >= self._storage.wanted_level(job.spec.checkpoint))

        def done(outcome: Outcome[tuple[tuple[Generation, ...], tuple[str, bool]]]) -> None:
            if outcome.value is None:
                _complain("checkpoints_not_seen", outcome.error, job=job.id)
                return
            self.generations[job.id], self._durable[job.id] = outcome.value

        self._errands.run(f"generations:{job.id}", work, done)

    def _down(self, attempt: Attempt) -> dict[str, str]:
        known = self.nodes.get(attempt.executor, {})
        return {
            slot.node: known[slot.node].problem
            for slot in attempt.slots
            if slot.node in known and not known[slot.node].is_up
        }

    def _bad_gpus(self, attempt: Attempt) -> dict[str, dict[int, str]]:
        known = self.nodes.get(attempt.executor, {})
        found: dict[str, dict[int, str]] = {}
        for slot in attempt.slots:
            bad = known[slot.node].bad_gpus if slot.node in known else {}
            if mine := {index: problem for index, problem in bad.items() if index in slot.gpus}:
                found[slot.node] = mine
        return found


def _is_clear(facts: RunFacts) -> bool:
    """The run said itself how it ended: nothing that is found out later changes it."""
    first = next(iter(facts.exits.values()), None)
    return facts.preempted or bool(facts.lost_nodes) or (first is not None and first.code in _TELLING_EXIT_CODES)


def _complain(event: str, error: Exception | None, **facts: str) -> None:
    if isinstance(error, UnavailableError):
        log.warning(event, why=error.message, **facts)
    elif isinstance(error, SdrsError):
        log.error(event, why=error.message, **facts)
    else:
        log.error(event, exc_info=error, **facts)
