"""Progress on stderr: bars while models load, and a line for each later stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from quire.cli.console import live, messages
from quire.cli.progress_lines import ProgressLines

ShowProgress = Callable[[str, float], None]
"""Called with a stage and its fraction from 0 to 1; from any thread."""


@contextmanager
def loading_progress() -> Iterator[ShowProgress]:
    """Yield the progress callback for ``Node.start``. The bars disappear at the end. If stderr is
    not a terminal, there are lines instead, one in ten seconds. Later stages, such as building the
    sandbox for the first program, are printed as lines."""
    shown = _Shown()
    console = live()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    try:
        if not console.is_terminal:
            yield shown
            return
        with Progress(*columns, console=console, transient=True) as progress:
            shown.progress = progress
            yield shown
    finally:
        shown.is_over = True


class _Shown:
    """Shows stages as bars of ``progress``, or as lines without it and once ``is_over``."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.is_over = False
        self._tasks: dict[str, TaskID] = {}
        self._told: set[str] = set()
        self._lines = ProgressLines()

    def __call__(self, stage: str, fraction: float) -> None:
        if self.is_over:
            if stage not in self._told and fraction < 1.0:
                self._told.add(stage)
                messages().print(f"{stage} ...")
        elif self.progress is not None:
            if stage not in self._tasks:
                self._tasks[stage] = self.progress.add_task(stage, total=1.0)
            self.progress.update(self._tasks[stage], completed=fraction)
        else:
            self._lines.tell(lambda: f"{stage}: {100 * fraction:.0f} %")
