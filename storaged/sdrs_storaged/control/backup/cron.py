"""The next moment that a cron line names, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from sdrs_core.errors import InvalidArgumentError


def next_by_cron(line: str, after_unix_ms: int) -> int:
    if len(line.split()) != 5:
        raise InvalidArgumentError(f'"{line}" is not a cron line: five fields are expected, as in "30 2 * * *"')
    try:
        moment = next(CronSim(line, datetime.fromtimestamp(after_unix_ms / 1000, UTC)))
    except (CronSimError, StopIteration) as error:
        raise InvalidArgumentError(f'"{line}" is not a cron line that ever comes: {error}') from None
    return int(moment.timestamp() * 1000)
