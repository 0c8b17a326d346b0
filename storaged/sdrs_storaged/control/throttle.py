"""How fast repair may be, as operators set it while it runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sdrs_core.errors import InvalidArgumentError, UnavailableError
from sdrs_storaged.control import keys
from sdrs_storaged.control.meta.store import Compare
from sdrs_storaged.control.records import MAX_TRIES, ConflictError, Records, put

MAX_CONCURRENCY = 64


@dataclass(frozen=True, slots=True)
class RepairSettings:
    # 0: no limit.
    bytes_per_second: int = 0
    concurrency: int = 2

    def bytes_per_second_each(self, at_once: int = 0) -> int:
        """For each of those that are made at once, which may be more than it says: see ``Repairer``."""
        each = self.bytes_per_second // max(self.concurrency, at_once)
        return max(1, each) if self.bytes_per_second else 0


class Throttle:
    """Settings that outlive this controller: the store has them, or else its configuration."""

    def __init__(self, records: Records, default: RepairSettings) -> None:
        self._records = records
        self._default = default
        self.settings = default
        # How many are under way.
        self.at_once = 0

    def limit(self) -> int:
        """Bytes a second for each of those under way, as it is now; 0: no limit."""
        return self.settings.bytes_per_second_each(self.at_once)

    async def load(self) -> None:
        stored = await self._records.get(keys.REPAIR, RepairSettings)
        self.settings = stored.value if stored else self._default

    async def change(self, *, bytes_per_second: int | None = None, concurrency: int | None = None) -> RepairSettings:
        """What is None stays as it is."""
        if bytes_per_second is not None and bytes_per_second < 0:
            raise InvalidArgumentError("repair cannot be slower than 0 bytes a second, which means: no limit")
        if concurrency is not None and not 1 <= concurrency <= MAX_CONCURRENCY:
            raise InvalidArgumentError(f"repair makes 1 to {MAX_CONCURRENCY} fragments at once, not {concurrency}")
        for _ in range(MAX_TRIES):
            stored = await self._records.get(keys.REPAIR, RepairSettings)
            changed = stored.value if stored else self._default
            if bytes_per_second is not None:
                changed = replace(changed, bytes_per_second=bytes_per_second)
            if concurrency is not None:
                changed = replace(changed, concurrency=concurrency)
            try:
                compare = stored.unchanged() if stored else Compare.absent(keys.REPAIR)
                await self._records.commit([compare], [put(keys.REPAIR, changed)])
            except ConflictError:
                continue
            self.settings = changed
            return changed
        raise UnavailableError("the settings of repair are changed by others all the time: try again")
