"""Edits that belong together, step by step; and fsspec's transactions, which are one batch of one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fsspec.transaction import Transaction

from sdrs.fsspec.contents import Spool
from sdrs.fsspec.places import Place
from sdrs.fsspec.trees import Edit, Put

if TYPE_CHECKING:
    from sdrs.fsspec.filesystem import SdrsFileSystem


class Batch:
    """The edits of each step, in order. Each step becomes one generation."""

    def __init__(self, *, one_step: bool = False) -> None:
        self._edits: dict[tuple[str, int], list[Edit]] = {}
        self._one_step = one_step

    def check(self, job: str, step: int) -> None:
        """All or nothing is promised for one generation: a transaction cannot have two."""
        for other in self._edits.keys() - {(job, step)} if self._one_step else ():
            raise ValueError(
                f"a transaction is one generation of one step: it has files of {Place(*other).path}, "
                f"{Place(job, step).path} needs another transaction"
            )

    def add(self, job: str, step: int, edit: Edit) -> None:
        self.check(job, step)
        self._edits.setdefault((job, step), []).append(edit)

    def close(self) -> None:
        """What was written is not needed any more."""
        for edits in self._edits.values():
            for edit in edits:
                if isinstance(edit, Put) and isinstance(edit.content, Spool):
                    edit.content.close()

    def steps(self) -> Iterator[tuple[str, int, list[Edit]]]:
        return ((job, step, edits) for (job, step), edits in self._edits.items())


class OneGeneration(Transaction):
    """``with fs.transaction:`` what is written, copied and removed in it is committed at its end, at once."""

    fs: SdrsFileSystem

    def __init__(self, fs: SdrsFileSystem, **options: Any) -> None:
        super().__init__(fs, **options)
        self.batch = Batch(one_step=True)

    def start(self) -> None:
        super().start()
        self.batch = Batch(one_step=True)

    def complete(self, commit: bool = True) -> None:
        fs, files = self.fs, list(self.files)
        self.files.clear()
        try:
            if commit:
                for file in files:
                    file.close()  # one that was left open ends here
                fs.commit(self.batch)
        finally:
            for file in files:
                file.discard()
            super().complete(commit=False)
