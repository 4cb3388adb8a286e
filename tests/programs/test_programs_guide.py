"""The guide to the library is what its programs say of themselves."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from quire.programs.guide import guide
from quire.programs.library import LIBRARY, THEMES

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "library.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == guide(), (
        "run `python -m quire.programs.guide > docs/guide/library.md`"
    )


def test_every_program_has_a_section_a_command_and_a_row() -> None:
    page = guide()
    assert len(re.findall(r"(?m)^### ", page)) == len(LIBRARY)
    headings = [f"\n## {theme.capitalize()}\n" for theme in THEMES] + ["\n## What each needs\n"]
    for names, heading, following in zip(THEMES.values(), headings, headings[1:], strict=False):
        section = page.partition(heading)[2].partition(following)[0]
        for name in names:
            assert re.search(rf"(?m)^quire run {name}\b", section), f"{name}: its command"
            assert page.count(f"| `{name}` |") == 1


def test_code_blocks_are_closed_and_keep_their_shape() -> None:
    page = guide()
    fences = re.findall(r"(?m)^```(\w*)$", page)
    assert all(fences[::2])
    assert not any(fences[1::2])
    assert "\n             └─ was" in page, "a picture's lines stay below one another"
    assert "``" not in page.replace("```", "")


def test_a_command_breaks_its_lines_between_arguments() -> None:
    """Within a quotation the spaces of the next line would become part of the prompt."""
    commands = re.findall(r"(?ms)^```bash\n(.*?)^```$", guide())
    assert len(commands) == len(LIBRARY)
    for command in commands:
        for argument in shlex.split(command):
            assert "\\\n" not in argument, command
            assert "   " not in argument, command
