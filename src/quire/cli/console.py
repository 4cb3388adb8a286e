"""The output of the commands: results to stdout, progress and errors to stderr.

Owns the differences between a terminal, a pipe and ``NO_COLOR``; rich does the rendering.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from threading import Timer
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quire.core.errors import QuireError

_FILE_WIDTH = 100
"""Width in columns when stdout is not a terminal."""

_CONTROL = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters that a terminal would obey; line ends and tabs are allowed."""


def output(width: int | None = None) -> Console:
    """Return the console for results.

    ``width``: in columns, for tables that must not be cut; by default that of the terminal.
    """
    console = _console(stderr=False)
    if width is not None or not console.is_terminal:
        console.width = width or _FILE_WIDTH
    return console


def messages() -> Console:
    """Return the console for progress and errors."""
    return _console(stderr=True)


def live() -> Console:
    """Return the console for output on stderr that is redrawn in place. It wraps lines at the width
    of the terminal, so that rich erases the right number of them."""
    return _console(stderr=True, soft_wrap=False)


def _console(*, stderr: bool, soft_wrap: bool = True) -> Console:
    """Return a console. It escapes text of programs, models and clients, so that rich does not
    interpret ``[x]`` and ``:x:``."""
    return Console(stderr=stderr, highlight=False, soft_wrap=soft_wrap, markup=False, emoji=False)


def table(*columns: str, right: tuple[str, ...] = (), wrap: tuple[str, ...] = ()) -> Table:
    """Return a table that reads well in a terminal and in a file.

    ``right``: columns of figures. ``wrap``: columns of text that may take several lines.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in wrap,
            overflow="fold",
        )
    return made


def natural_width(shown: Table) -> int:
    """Return how many columns ``shown`` takes if no line of it is folded."""
    wide = Console(width=1 << 16)
    return wide.measure(shown).maximum


def show_message(text: str) -> None:
    """Print a message of a program unchanged, with control characters made visible."""
    output().print(escaped(text))


class ShownMessages:
    """Prints a program's messages: each on its own lines, or (``is_stream``) without line ends, as
    pieces of one text."""

    def __init__(self, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._text = sha256()
        self._last = "\n"

    def __call__(self, text: str) -> None:
        """Print a message."""
        if not self._is_stream:
            show_message(text)
            return
        self._last = text[-1:] or self._last
        self._text.update(text.encode("utf-8", "surrogatepass"))
        output().print(escaped(text), end="")

    def end(self) -> None:
        """End the last line."""
        if self._last != "\n":
            output().print()

    def print_result(self, result: Any) -> None:
        """Print the program's result, unless it is the text that its pieces have made."""
        is_text = self._is_stream and isinstance(result, str)
        encoded = result.encode("utf-8", "surrogatepass") if is_text else b""
        if not is_text or sha256(encoded).digest() != self._text.digest():
            print_result(result)


@contextmanager
def shown(stream: bool) -> Iterator[ShownMessages]:
    """Yield a function that prints a program's messages; at the end of the block the last line
    ends."""
    messages_shown = ShownMessages(stream)
    try:
        yield messages_shown
    finally:
        messages_shown.end()


@contextmanager
def waiting(text: str, quiet_s: float = 2.0) -> Iterator[Callable[[str], None]]:
    """Show a spinner with ``text`` on stderr while the block runs. Without a terminal, print
    ``text`` as a line once the block has run for ``quiet_s``.

    Yields a function, for any thread, that shows a later stage in place of ``text``; without a
    terminal it prints a further line.
    """
    console = messages()
    if not console.is_terminal:
        timer = Timer(quiet_s, console.print, (f"{text} ...",))
        timer.start()
        try:
            yield lambda stage: console.print(f"{stage} ...")
        finally:
            timer.cancel()
            timer.join()
        return
    with live().status(Text(text)) as status:
        yield lambda stage: status.update(Text(stage))


def counted(number: int, noun: str) -> str:
    """Return ``number`` and ``noun``, in the plural unless it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def print_result(result: Any) -> None:
    """Print a program's result: strings as ``show_message`` does, other values as JSON."""
    if result is None:
        return
    text = result if isinstance(result, str) else json.dumps(result, indent=2, ensure_ascii=False)
    output().print(escaped(text))


def print_error(error: QuireError) -> None:
    """Print an error as one line with the remedy that the message contains, never a traceback."""
    messages().print(Text.assemble(("error: ", "bold red"), escaped(error.message)))


def escaped(text: str) -> str:
    """Return ``text`` of a program or a model with control characters escaped: ESC becomes
    ``\\u001b``. JSON uses the same escapes, so JSON stays valid."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
