"""What owners see of their program's errors: their own lines, whatever the error is made of."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.programs.inferlet import load_inferlet
from quire.programs.tracebacks import MAX_TRACEBACK_CHARS, own_traceback, program_failed
from quire.testing import LocalNode


def raised(error: BaseException) -> BaseException:
    """``error`` as it is after another file than its program's has raised it."""
    namespace = {"error": error}
    try:
        exec(compile("raise error", "foreign.py", "exec"), namespace)
    except BaseException as exc:
        own = exc.__traceback__  # of this function, in this file
        return exc.with_traceback(own.tb_next if own is not None else None)
    raise AssertionError


def test_causes_in_other_code_are_left_out() -> None:
    theirs = raised(ValueError("theirs"))
    try:
        raise KeyError("mine") from theirs
    except KeyError as exc:
        text = own_traceback(exc, __file__)
    assert "KeyError: 'mine'" in text
    assert "ValueError" not in text
    assert "foreign.py" not in text


def test_an_own_cause_behind_another_codes_is_kept() -> None:
    theirs = raised(ValueError("theirs"))
    try:
        raise LookupError("mine too")
    except LookupError as exc:
        theirs.__cause__ = exc
    try:
        raise KeyError("mine") from theirs
    except KeyError as exc:
        text = own_traceback(exc, __file__)
    assert text.index("LookupError: mine too") < text.index("KeyError: 'mine'")
    assert "ValueError" not in text


def test_a_cause_that_was_never_raised_is_the_programs_own() -> None:
    try:
        raise KeyError("mine") from ValueError("a reason")
    except KeyError as exc:
        text = own_traceback(exc, __file__)
    assert "ValueError: a reason" in text


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class Leaving(Exception):
    """Whoever asks what it says leaves, as by ``sys.exit``."""

    def __str__(self) -> str:
        raise SystemExit(1)


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit(1)


class Unnamed(Exception, metaclass=Nameless):
    pass


class HoldsItself(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        Endless.ask()
        return (self,)


class AlwaysCaused(Exception):
    @property
    def __cause__(self) -> Any:
        Endless.ask()
        Endless.causes.append(AlwaysCaused())
        return Endless.causes[-1]

    @__cause__.setter
    def __cause__(self, cause: object) -> None:
        pass


class Endless:
    """Counts how often somebody follows what never ends, and ends it after all."""

    num_asked = 0
    causes: list[BaseException] = []  # noqa: RUF012

    @classmethod
    def ask(cls) -> None:
        cls.num_asked += 1
        if cls.num_asked > 10_000:
            raise SystemExit(1)


class FalselyFailed(ProgramFailed):
    @property
    def message(self) -> Any:
        raise SystemExit(1)

    @message.setter
    def message(self, text: object) -> None:
        pass


def chain(length: int) -> BaseException:
    error: BaseException = ValueError("first")
    for number in range(length):
        try:
            raise ValueError(number) from error
        except ValueError as exc:
            error = exc
    return error


@pytest.mark.parametrize(
    "error",
    [
        Mute(),
        Leaving(),
        Unnamed(),
        HoldsItself("", [ValueError()]),
        AlwaysCaused(),
        FalselyFailed("x"),
        chain(5000),
    ],
    ids=["mute", "leaving", "unnamed", "holds itself", "always caused", "falsely failed", "deep"],
)
async def test_an_error_that_cannot_be_shown_still_ends_its_program(error: BaseException) -> None:
    async def main(api: Any) -> None:
        raise error

    Endless.num_asked = 0
    async with LocalNode() as node:
        with pytest.raises(ProgramFailed, match=r"program 'main' raised"):
            await asyncio.wait_for(node.run(main), 60)
    assert Endless.num_asked < 1000


def test_what_a_task_group_alone_holds_is_told_first() -> None:
    inner = InvalidArgument("max_tokens is -1\nchoose another")
    failed = program_failed(
        "p", None, ExceptionGroup("in a TaskGroup", [ExceptionGroup("", [inner])])
    )
    assert failed.message.startswith(
        "program 'p' raised ExceptionGroup: in a TaskGroup (1 sub-exception): "
        "InvalidArgument: max_tokens is -1\n"
    )
    assert failed.details["code"] == "invalid_argument"
    several = program_failed("p", None, ExceptionGroup("in a TaskGroup", [inner, KeyError("k")]))
    assert several.message.partition("\n")[0].endswith("in a TaskGroup (2 sub-exceptions)")
    assert "code" not in several.details
    assert "InvalidArgument" in several.message
    assert "KeyError: 'k'" in several.message


def test_a_long_traceback_keeps_its_end() -> None:
    try:
        raise ValueError("x" * MAX_TRACEBACK_CHARS + "end")
    except ValueError as exc:
        text = own_traceback(exc, __file__)
    assert len(text) <= MAX_TRACEBACK_CHARS + 4
    assert text.endswith("end\n")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("x = 1\ny = x / 0\n", ["line 2", "y = x / 0", "ZeroDivisionError: division by zero"]),
        ("def f(:\n", ["line 1", "def f(:", "SyntaxError"]),
        ("import sys\nsys.exit(4)\n", ["line 2", "SystemExit: 4"]),
        ("import no_such_module\n", ["line 1", "No module named 'no_such_module'"]),
    ],
)
def test_a_file_that_cannot_be_imported_shows_where(
    source: str, shown: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "broken.py"
    path.write_text(source)
    with pytest.raises(InvalidArgument) as caught:
        load_inferlet(path)
    assert all(part in caught.value.message for part in shown), caught.value.message
    assert "importlib" not in caught.value.message
    assert "inferlet.py" not in caught.value.message
