"""What is on record of nodes: how they were last seen, and what is held against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sdrs_scheduler import keys
from sdrs_scheduler.book import Book, Extra
from sdrs_scheduler.clock import Clock
from sdrs_scheduler.entries import NodeRecord, Strike
from sdrs_scheduler.errands import Errands, Outcome
from sdrs_scheduler.executors.executor import NodeFacts
from sdrs_scheduler.jobs.job import Attempt
from sdrs_scheduler.jobs.strikes import StrikeSettings, with_strike
from sdrs_scheduler.leading import Leader
from sdrs_scheduler.logs import get_log
from sdrs_scheduler.storage import Storage

log = get_log("nodes")


class NodeBook:
    def __init__(
        self, book: Book, leader: Leader, storage: Storage, errands: Errands, clock: Clock, settings: StrikeSettings
    ) -> None:
        self._book = book
        self._leader = leader
        self._storage = storage
        self._errands = errands
        self._settings = settings
        self._clock = clock
        self._begun = clock.monotonic()
        self._told: dict[str, float] = {}

    def strike(self, before: Attempt | None, after: Attempt | None, now_unix_ms: int) -> Extra | None:
        """What the end of an attempt adds to the record of the node that is blamed for it."""
        if after is None or not after.ended_unix_ms or (before is not None and before.ended_unix_ms):
            return None
        verdict = after.verdict
        if verdict is None or verdict.failure is None or not verdict.blamed_node:
            return None
        name = verdict.blamed_node
        stored = self._book.nodes.get(name)
        record = stored.value if stored else NodeRecord(name, executor=after.executor)
        strike = Strike(now_unix_ms, verdict.failure, after.job_id, verdict.sentence)
        changed = with_strike(record, strike, self._settings)
        if changed == record:
            return None
        key = keys.node(name)
        return Extra({key: changed}, {key: stored.revision if stored else 0})

    def see(self, executor: str, nodes: Mapping[str, NodeFacts]) -> None:
        """Put on record what changed."""
        for facts in nodes.values():
            stored = self._book.nodes.get(facts.name)
            record = stored.value if stored else NodeRecord(facts.name)
            seen = replace(
                record,
                executor=executor,
                gpus=facts.gpus,
                gpu_type=facts.gpu_type,
                groups=tuple(sorted(facts.groups)),
                is_up=facts.is_up,
                problem=facts.problem,
                bad_gpus=dict(facts.bad_gpus),
            )
            key = keys.node(facts.name)
            if seen != record:
                self._leader.commit({key: stored.revision if stored else 0}, {key: seen})

    def close_struck(self, cordoned: Mapping[str, str], asked: float) -> None:
        """Tell the storage of nodes that we cordon; and take it as a person's word if they were opened there again.

        ``cordoned`` is what the storage said when it was asked at ``asked``.
        """
        for name, stored in list(self._book.nodes.items()):
            record = stored.value
            if not record.cordoned_because:
                continue
            if not record.is_told:
                self._tell(name, record)
            elif name not in cordoned and record.is_storage_node and asked > self._told.get(name, self._begun):
                log.info("node_opened_again", node=name)
                opened = replace(record, strikes=(), cordoned_because="", cordoned_unix_ms=0, is_told=False)
                self._leader.commit({stored.key: stored.revision}, {stored.key: opened})

    def _tell(self, name: str, record: NodeRecord) -> None:
        reason = f"scheduler: {record.cordoned_because}"

        def done(outcome: Outcome[bool]) -> None:
            stored = self._book.nodes.get(name)
            if outcome.error is not None or stored is None:
                log.warning("node_not_cordoned_yet", node=name, why=str(outcome.error))
                return
            self._told[name] = self._clock.monotonic()
            log.warning("node_cordoned", node=name, why=record.cordoned_because)
            told = replace(stored.value, is_told=True, is_storage_node=bool(outcome.value))
            self._leader.commit({stored.key: stored.revision}, {stored.key: told})

        self._errands.run(f"cordon:{name}", lambda: self._storage.cordon(name, reason), done)
