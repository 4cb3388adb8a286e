"""Progress bars on stderr while models load; nothing where stderr is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from quire.cli.console import live

ShowProgress = Callable[[str, float], None]
"""Called with a stage and how far it is, 0 to 1; from any thread."""


@contextmanager
def loading_progress() -> Iterator[ShowProgress]:
    """What to give ``Node.start``. The bars vanish at the end."""
    console = live()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    if not console.is_terminal:
        yield lambda stage, fraction: None
        return
    with Progress(*columns, console=console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def show(stage: str, fraction: float) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=1.0)
            progress.update(tasks[stage], completed=fraction)

        yield show


__all__ = ["ShowProgress", "loading_progress"]
