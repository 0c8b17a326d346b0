"""What a group has of a blob from an earlier try, under this primary or another (P11).

Only for blobs that are spread over some of the members: what all of them store whole is looked for on the primary's own
disk, and filled up when the shard is sealed.
"""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.checkpoints import Holder
from sdrs_core.cluster import Group
from sdrs_core.codes import parse_code
from sdrs_core.redundancy import Form, Standing, form_of, standing
from sdrs_core.shares import choose, held_places, least_standing
from sdrs_proto.v1 import storage_pb2 as pb
from sdrs_storaged.node.groups import Groups
from sdrs_storaged.node.reports import MemberReports
from sdrs_storaged.node.transfers import WriteIntent
from sdrs_storaged.rpc.census import Answers, Census, holder_of
from sdrs_storaged.store.fragment import FragmentKey


class Recall:
    def __init__(self, groups: Groups, census: Census, reports: MemberReports) -> None:
        self._groups = groups
        self._census = census
        self._reports = reports

    def is_spread(self, intent: WriteIntent) -> bool:
        """Whether the blob is stored by some of the members, each another part or copy of it."""
        if intent.relayed:
            return False
        group = self._groups.check(intent.group_id, intent.epoch, as_primary=True)
        return form_of(self._groups.pool_of(group), intent.size_bytes).spread

    async def look(self, intent: WriteIntent) -> tuple[WriteIntent, pb.StoredBlob | None]:
        """The intent with what is held already; and what was stored, if that is enough and nothing need be sent."""
        group = self._groups.check(intent.group_id, intent.epoch, as_primary=True)
        pool, domains = self._groups.pool_of(group), self._groups.domains
        form = form_of(pool, intent.size_bytes)
        code = parse_code(form.code)
        keys = [FragmentKey(intent.origin.blob_id, index) for index in range(code.total if code else 1)]
        asked = [member for member in group.members if not self._reports.is_spared(group, member)]

        def found_in(answers: Answers) -> tuple[str, list[Holder]]:
            return _most_held(intent, form, answers)

        def is_safe(answers: Answers) -> bool:
            return standing(form, choose(form, found_in(answers)[1], domains), domains) >= Standing.SAFE

        blob_hash, found = found_in(await self._census.ask(group, asked, keys, is_safe))
        chosen = choose(form, found, domains)
        places = held_places(form, chosen, domains, crowded=pool.allow_degraded)
        recalled = replace(intent, held=tuple(places.items()), held_hash=blob_hash)
        reached = standing(form, chosen, domains)
        is_enough = reached >= Standing.SAFE or (reached >= least_standing(pool) and len(places) == form.total)
        return recalled, _stored(intent, group, blob_hash, chosen) if is_enough else None


def _most_held(intent: WriteIntent, form: Form, answers: Answers) -> tuple[str, list[Holder]]:
    """Of the contents that came under this name, which should be one, the one that most is there of."""
    by_hash: dict[str, list[Holder]] = {}
    for member, held_there in answers.items():
        for held in held_there:
            if (held.save_id, held.code, held.source_size_bytes) == (
                intent.origin.save_id,
                form.code,
                intent.size_bytes,
            ):
                by_hash.setdefault(held.source_hash, []).append(holder_of(member, held))
    return max(by_hash.items(), key=lambda item: len(item[1]), default=("", []))


def _stored(intent: WriteIntent, group: Group, blob_hash: str, holders: tuple[Holder, ...]) -> pb.StoredBlob:
    own = next((holder.disk_id for holder in holders if holder.node_id == group.primary), "")
    return pb.StoredBlob(blob_id=intent.origin.blob_id, size_bytes=intent.size_bytes, hash=blob_hash, disk_id=own)
