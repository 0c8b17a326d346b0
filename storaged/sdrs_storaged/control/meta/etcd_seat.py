"""A leader's seat in etcd: a lease that is kept alive in the background, on which the leader's record hangs.

Losing it needs no reaction here: etcd deletes the record, everything that the leader writes compares the record (I3),
and ``MetaStore.lost`` sees it go. An outage of etcd costs no seat: its leases wait until it has a leader again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from sdrs_core.errors import SdrsError
from sdrs_proto.etcd import etcd_pb2 as pb
from sdrs_storaged.control.meta.etcd_client import LEASE, Endpoint, EtcdClient, Metadata
from sdrs_storaged.control.meta.etcd_errors import LeaseGoneError, UnknownOutcomeError
from sdrs_storaged.logs import get_log

log = get_log("etcd")


class Seat:
    """Take it with ``take``; from ``hold`` on it is renewed until ``leave``."""

    def __init__(self, client: EtcdClient, lease_id: int, lease_seconds: int) -> None:
        self._client = client
        self.lease_id = lease_id
        self._lease_seconds = lease_seconds
        self._renewing: asyncio.Task[None] | None = None

    @classmethod
    async def take(cls, client: EtcdClient, lease_seconds: int) -> Seat:
        # A lease that nobody came to know of runs out by itself, so asking twice does no harm.
        granted = await client.call(LEASE, "lease_grant", pb.LeaseGrantRequest(TTL=lease_seconds), repeatable=True)
        return cls(client, granted.ID, lease_seconds)

    def hold(self) -> None:
        self._renewing = asyncio.create_task(self._renew(), name="etcd-lease")

    async def _renew(self) -> None:
        request = pb.LeaseKeepAliveRequest(ID=self.lease_id)

        async def ask(endpoint: Endpoint, metadata: Metadata, timeout: float) -> Any:
            call = endpoint.stub(LEASE).lease_keep_alive(iter([request]), metadata=metadata, timeout=timeout)
            try:
                answer = await call.read()
            finally:
                call.cancel()
            if answer is grpc.aio.EOF:
                raise UnknownOutcomeError(f"etcd at {endpoint.address} ended the stream")
            return answer

        while True:
            await asyncio.sleep(self._lease_seconds / 3)
            try:
                answer = await self._client.ask(ask, repeatable=True, seconds=self._lease_seconds * 2 / 3)
            except LeaseGoneError:
                break
            except SdrsError as error:
                log.warning("lease_not_renewed", why=error.message)
                continue
            if answer.TTL <= 0:
                break
        log.warning("lease_lost", lease_seconds=self._lease_seconds)

    async def leave(self) -> None:
        """Give it back, so that the next one need not wait for it to run out. No harm if etcd is out of reach."""
        if self._renewing:
            self._renewing.cancel()
        try:
            request = pb.LeaseRevokeRequest(ID=self.lease_id)
            await self._client.call(LEASE, "lease_revoke", request, repeatable=True, seconds=self._lease_seconds)
        except LeaseGoneError:
            pass
        except SdrsError as error:
            log.warning("lease_not_revoked", why=error.message)
