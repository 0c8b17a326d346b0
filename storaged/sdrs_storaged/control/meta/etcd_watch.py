"""Watching etcd without gaps: a stream that breaks is opened again, elsewhere, where it ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc

from sdrs_core.errors import PermissionDeniedError
from sdrs_proto.etcd import etcd_pb2 as pb
from sdrs_storaged.control.meta.etcd_client import WATCH, EtcdClient, backoff
from sdrs_storaged.control.meta.etcd_errors import NothingDoneError, TokenRefusedError, UnknownOutcomeError
from sdrs_storaged.control.meta.etcd_messages import Messages
from sdrs_storaged.control.meta.store import CompactedError, Event, EventBatch
from sdrs_storaged.logs import get_log

log = get_log("etcd")


async def follow(
    client: EtcdClient, messages: Messages, prefix: str, next_revision: int
) -> AsyncGenerator[EventBatch, None]:
    pauses = backoff()
    was_refused = False
    while True:
        # From one revision earlier than needed: etcd refuses what lies *before* its compaction, but at that very
        # revision it may have dropped deletions already. What was seen before is passed over below.
        create = pb.WatchCreateRequest(
            key=messages.key(prefix),
            range_end=messages.end(prefix),
            start_revision=max(1, next_revision - 1),
            fragment=True,
        )
        try:
            async with client.stream(WATCH, "watch") as call:
                await call.write(pb.WatchRequest(create_request=create))
                held: list[Event] = []
                while (response := await call.read()) is not grpc.aio.EOF:
                    if response.canceled:
                        _raise_cancelled(response, next_revision, was_refused)
                    pauses, was_refused = backoff(), False
                    for message in response.events:
                        event = messages.event(message)
                        if event.entry.mod_revision < next_revision:
                            continue
                        if held and held[0].entry.mod_revision != event.entry.mod_revision:
                            yield _batch(held)
                            next_revision, held = held[0].entry.mod_revision + 1, []
                        held.append(event)
                    # A large revision comes in pieces; only the last piece says that there is no more.
                    if held and not response.fragment:
                        yield _batch(held)
                        next_revision, held = held[0].entry.mod_revision + 1, []
                raise UnknownOutcomeError("the stream ended")
        except TokenRefusedError as error:
            client.forget_token()
            why, was_refused = str(error), True
        except (NothingDoneError, UnknownOutcomeError) as error:
            why = str(error)
        log.debug("watch_interrupted", prefix=prefix, at=next_revision, why=why)
        await asyncio.sleep(next(pauses))


def _batch(events: list[Event]) -> EventBatch:
    return EventBatch(events[0].entry.mod_revision, tuple(events))


def _raise_cancelled(response: pb.WatchResponse, next_revision: int, was_refused: bool) -> None:
    if response.compact_revision:
        raise CompactedError(
            f"the history from revision {next_revision} is gone, it starts at {response.compact_revision + 1}: "
            "read the state anew",
            oldest=response.compact_revision + 1,
        )
    reason = response.cancel_reason
    if "permission denied" in reason or "token" in reason:
        # Some versions say "permission denied" of a token that ran out, so a fresh one is tried first.
        if was_refused:
            raise PermissionDeniedError(f"etcd refuses a watch: {reason}: grant the user read access to the prefix")
        raise TokenRefusedError(reason)
    raise NothingDoneError(reason)
