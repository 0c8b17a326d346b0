"""Progress of what takes long: a bar on stderr for people, nothing for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sdrs.cli.amounts import format_bytes
from sdrs.cli.output import make_console
from sdrs.cli.settings import Settings

Advance = Callable[[int, int], None]


@contextmanager
def byte_bar(settings: Settings, title: str) -> Iterator[Advance]:
    """Yields the function to call with (bytes done, bytes in total)."""
    if not settings.shows_progress:
        yield lambda done_bytes, total_bytes: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class SpeedColumn(ProgressColumn):
        """In the units of the amount beside it; rich's own counts in MB."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{format_bytes(speed)}/s" if speed else "", style="progress.data.speed")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        SpeedColumn(),
        TimeRemainingColumn(),
    )
    # Transient: once done, the answer itself says all that matters.
    with Progress(*columns, console=make_console(settings, stderr=True), transient=True) as bar:
        # Descriptions may hold names from the user: they are not markup.
        task = bar.add_task(title.replace("[", "\\["), total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes or None)


@contextmanager
def stage_bar(settings: Settings, title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Yields the function to call with (stage, things done, things in total)."""
    if not settings.shows_progress:
        yield lambda stage, done_count, total_count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(settings, stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(stage: str, done_count: int, total_count: int) -> None:
            words = f"{title}: {stage}".replace("[", "\\[")
            bar.update(task, description=words, completed=done_count, total=total_count or None)

        yield advance
