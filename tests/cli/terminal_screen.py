"""A terminal's screen, as far as the commands of this package use one."""

from __future__ import annotations

import re


def screen_of(written: str, width: int) -> list[str]:
    """What a terminal shows once ``written`` was: text that wraps, and the commands used here."""
    screen, row, column = [[" "] * width], 0, 0
    for found in re.finditer(r"\x1b\[([?0-9;]*)([A-Za-z])|(.)", written, re.DOTALL):
        amount, command, text = found.groups()
        if command == "A":
            row = max(0, row - int(amount or 1))
        elif command == "K":
            assert amount == "2"
            screen[row] = [" "] * width
        elif text == "\r":
            column = 0
        elif text is not None:
            if text == "\n" or column == width:
                row, column = row + 1, 0
                screen += [[" "] * width] if row == len(screen) else []
            if text != "\n":
                screen[row][column] = text
                column += 1
    return ["".join(line).rstrip() for line in screen]
