"""What a program says is shown to the person at the terminal; the terminal does not obey it."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from terminal_screen import screen_of

from quire.cli.console import counted, output, print_error, print_result, show_message, waiting
from quire.cli.console import shown as shown_by
from quire.cli.process_table import process_table
from quire.cli.push import upload_table
from quire.core.errors import ProgramFailed

HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\rd\x9b1me\x7f"
SHOWN = r"a\u001b]0;title\u0007b\u001b[2Jc\u000dd\u009b1me\u007f"


def test_a_long_wait_is_told_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And a short one is not: a script's log has a line for what it waited for, or none."""
    printed = threading.Event()

    class Told(io.StringIO):
        def flush(self) -> None:
            if self.getvalue():
                printed.set()

    told = Told()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", told)
        with waiting("a sandbox is built", quiet_s=0.0):
            assert printed.wait(60)
        assert told.getvalue() == "a sandbox is built ...\n"
    with waiting("a sandbox is built", quiet_s=1000.0):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("width", [20, 30, 75, 200])
def test_nothing_is_left_of_what_was_waited_for(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not when it is interrupted, and not of a text that is longer than the terminal is wide."""
    for name, value in (("TTY_COMPATIBLE", "1"), ("TERM", "xterm"), ("COLUMNS", str(width))):
        monkeypatch.setenv(name, value)
    text = "[programs]/my_agent.py is checked; a node's first program waits"
    with suppress(KeyboardInterrupt), waiting(text):
        raise KeyboardInterrupt
    written = capsys.readouterr().err
    assert "checked;" in written
    assert not any(screen_of(written, width)), screen_of(written, width)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(
    "show",
    [show_message, print_result, lambda text: print_error(ProgramFailed(text))],
    ids=["message", "result", "error"],
)
def test_control_characters_are_shown_not_obeyed(
    show: Callable[[str], Any],
    terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    monkeypatch.setenv("NO_COLOR", "1")
    show(HOSTILE)
    shown = "".join(capsys.readouterr())
    assert SHOWN in shown
    assert "\x1b]" not in shown
    assert not set("\x07\r\x7f\x9b") & set(shown)


def test_results_that_are_no_strings_are_escaped_too(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"text": "\x1b[2J\x9b\x7f", "more": "é"}
    print_result(result)
    shown = capsys.readouterr().out
    assert r"\u001b[2J\u009b\u007f" in shown
    assert "é" in shown
    assert json.loads(shown) == result


def test_lines_tabs_and_markup_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_message("[bold]one[/bold]\ntwo ünï 日本 :smile:\n")
    assert capsys.readouterr().out == "[bold]one[/bold]\ntwo ünï 日本 :smile:\n\n"
    show_message("one\r\ntwo")
    assert "u000d" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a", "", "b\x1b c", "d"], "ab\\u001b cd\n"),
        (["a\n", "b\n"], "a\nb\n"),
        (["a", "\n", ""], "a\n"),
        ([], ""),
    ],
)
def test_pieces_of_one_text_make_one_text(
    pieces: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown_by(stream=True) as show:
        for piece in pieces:
            show(piece)
    assert capsys.readouterr().out == expected
    with shown_by(stream=False) as show:
        show("a")
    assert capsys.readouterr().out == "a\n"


@pytest.mark.parametrize(
    ("stream", "result", "expected"),
    [
        (True, "ab", "ab\n"),
        (True, "abc", "ab\nabc\n"),
        (True, {"text": "ab"}, 'ab\n{\n  "text": "ab"\n}\n'),
        (True, None, "ab\n"),
        (False, "ab", "a\nb\nab\n"),
    ],
    ids=["the same", "another", "no text", "none", "by lines"],
)
def test_a_result_that_was_streamed_is_not_printed_again(
    stream: bool, result: Any, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with shown_by(stream) as show:
        show("a")
        show("b")
    show.print_result(result)
    assert capsys.readouterr().out == expected


def test_names_that_clients_make_up_are_text_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """A session's name is a header of a request: it must not break ``quire ps`` for its owner."""
    program = {
        "id": "prog-1", "name": "[/red] :x: \x1b[2J", "form": "session", "state": "idle",
        "process": None,
    }  # fmt: skip
    output().print(process_table([program], 0.0))
    assert r"[/red] :x: \u001b[2J" in capsys.readouterr().out


def test_what_nobody_has_named_has_no_name_and_no_name_cuts_a_figure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = {"num_prefilled_tokens": 1, "num_pages": 7654321}
    programs = [
        {"id": 30 * "1", "name": 30 * "1", "form": "session", "state": "idle", "process": figures},
        {"id": 30 * "2", "name": 90 * "n", "form": "session", "state": "idle", "process": figures},
    ]
    output().print(process_table(programs, 0.0))
    shown = capsys.readouterr().out
    assert shown.count("1" * 12) == 1
    assert "".join(re.findall(r"n{5,}", shown)) == 90 * "n"
    assert shown.count("7654321") == 2
    assert "pages" in shown


def test_a_long_description_leaves_room_for_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    upload = {
        "id": 64 * "f", "name": "my_program", "kind": "python", "num_bytes": 1234,
        "description": "word " * 40 + "[/red]\nMore.",
    }  # fmt: skip
    output().print(upload_table([upload]))
    shown = " ".join(capsys.readouterr().out.split())
    assert "my_program python 1234 ffff" in shown
    assert "[/red]" in shown


def test_one_thing_is_named_in_the_singular() -> None:
    assert [counted(num, "call") for num in (0, 1, 2)] == ["0 calls", "1 call", "2 calls"]
