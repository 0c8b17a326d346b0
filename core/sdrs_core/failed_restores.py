"""When a generation that cannot be restored is marked, so that nobody tries it first any more.

Bytes that do not match their checksums are looked at by their own nodes, and what these find is marked at once. This is
for the rest: a generation whose bytes are as they were written, and which still does not become a state again. One
failure may be the reader's own; several restores that failed alike are the generation's.
"""

from __future__ import annotations

from dataclasses import replace

from sdrs_core.checkpoints import Save

# So many restores have to fail before a generation is marked.
FAILURES_TO_MARK = 3
_MAX_REASON_CHARS = 500
_MARK = "it failed to restore"


def note_failed_restore(save: Save, restore_id: str, reason: str) -> Save:
    """``restore_id`` is the same for all ranks that restore together: they fail once.

    Only what is wrong with the bytes counts. One that is out of reach may be back at any moment: its readers tell
    nobody, and it is never marked for that.
    """
    if restore_id in save.failed_restores or len(save.failed_restores) >= FAILURES_TO_MARK:
        return save
    failed = (*save.failed_restores, restore_id)
    noted = replace(save, failed_restores=failed, restore_failure=reason[:_MAX_REASON_CHARS])
    if len(failed) < FAILURES_TO_MARK or save.damage:
        return noted
    return replace(noted, damage=f"{_MARK} {len(failed)} times: {noted.restore_failure}")


def is_marked_by_restores(save: Save) -> bool:
    """As opposed to bytes that were found to be bad: that its bytes are sound says nothing then."""
    return save.damage.startswith(_MARK)


def without_failures(save: Save) -> Save:
    """Every byte was found to be as it was written: it may be tried again."""
    return replace(save, damage="", failed_restores=(), restore_failure="")
