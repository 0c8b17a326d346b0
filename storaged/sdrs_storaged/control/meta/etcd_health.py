"""How full etcd is, which alarms it raised, and who of its members does not answer: before it stops taking writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

import grpc

from sdrs_core.errors import SdrsError
from sdrs_proto.etcd import etcd_pb2 as pb
from sdrs_storaged.control.meta.etcd_client import MAINTENANCE, Endpoint, EtcdClient
from sdrs_storaged.control.meta.etcd_errors import NothingDoneError

_LOOK_SECONDS = 2.0
WARN_AT_FRACTION = 0.8


@dataclass(frozen=True, slots=True)
class MemberHealth:
    """``problem`` says why it did not answer; then nothing else is known."""

    address: str
    database_bytes: int = 0
    quota_bytes: int = 0
    alarms: tuple[str, ...] = ()
    problem: str = ""


async def health_of(client: EtcdClient, quota_bytes: int) -> list[MemberHealth]:
    """``quota_bytes`` is for members that do not tell theirs (before 3.6)."""

    async def look(endpoint: Endpoint) -> MemberHealth:
        try:
            await endpoint.connect()
            metadata = await client.metadata(endpoint, _LOOK_SECONDS)
            status = await endpoint.stub(MAINTENANCE).status(
                pb.StatusRequest(), metadata=metadata, timeout=_LOOK_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            return MemberHealth(endpoint.address, problem=error.details() or error.code().name)
        except (NothingDoneError, SdrsError) as error:
            return MemberHealth(endpoint.address, problem=str(error))
        return MemberHealth(endpoint.address, status.dbSize, status.dbSizeQuota or quota_bytes, tuple(status.errors))

    return list(await asyncio.gather(*map(look, client.endpoints)))


def sentences_of(members: Iterable[MemberHealth]) -> tuple[str, ...]:
    found: list[str] = []
    alarms: set[str] = set()
    for member in members:
        alarms.update(member.alarms)
        if member.problem:
            found.append(f"etcd at {member.address} does not answer: {member.problem}")
        elif member.database_bytes >= WARN_AT_FRACTION * member.quota_bytes:
            percent = 100 * member.database_bytes / member.quota_bytes
            found.append(
                f"the database of etcd at {member.address} has reached {percent:.0f} % of its quota, and at 100 % "
                "takes no more writes: defragment it (`etcdctl defrag`) or raise --quota-backend-bytes"
            )
    # Every member tells the alarms of all.
    found += [f"etcd raised an alarm: {alarm}: see `etcdctl alarm list`" for alarm in sorted(alarms)]
    return tuple(found)
