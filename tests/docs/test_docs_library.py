"""The guide to the library is what its programs say of themselves."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from quire.programs.library import LIBRARY, THEMES
from tools.pages.library import commands, guide

FOLDER = Path(__file__).parents[2] / "docs" / "guide"
ANSWERS = json.loads((FOLDER / "library-answers.json").read_text(encoding="utf-8"))


def test_the_page_is_up_to_date() -> None:
    assert (FOLDER / "library.md").read_text(encoding="utf-8") == guide(ANSWERS), "run `make docs`"


def test_every_program_has_a_section_a_command_and_a_row() -> None:
    page = guide(ANSWERS)
    assert len(re.findall(r"(?m)^### ", page)) == len(LIBRARY)
    headings = [f"\n## {theme.capitalize()}\n" for theme in THEMES] + ["\n## Required traits\n"]
    for names, heading, following in zip(THEMES.values(), headings, headings[1:], strict=False):
        section = page.partition(heading)[2].partition(following)[0]
        for name in names:
            assert re.search(rf"(?m)^quire run {name}\b", section), f"{name}: its command"
            assert page.count(f"| `{name}` |") == 1


def test_code_blocks_are_closed_and_keep_their_shape() -> None:
    page = guide(ANSWERS)
    fences = re.findall(r"(?m)^```(\w*)$", page)
    assert all(fences[::2])
    assert not any(fences[1::2])
    assert "\n             └─ was" in page, "a picture's lines stay below one another"
    assert "``" not in page.replace("```", "")


def test_a_command_breaks_its_lines_between_arguments() -> None:
    """Within a quotation the spaces of the next line would become part of the prompt."""
    blocks = re.findall(r"(?ms)^```bash\n(.*?)^```$", guide(ANSWERS))
    assert len(blocks) == len(LIBRARY)
    for command in blocks:
        for argument in shlex.split(command):
            assert "\\\n" not in argument, command
            assert "   " not in argument, command


def test_each_command_stands_before_its_answer() -> None:
    page = guide(ANSWERS)
    assert set(ANSWERS) < {command for name in LIBRARY for command in commands(name)}
    for name in LIBRARY:
        told = [command for command in commands(name) if command in ANSWERS]
        if told and not isinstance(ANSWERS[told[0]], str):
            behind = page.partition(told[-1])[2].partition("```json\n")[2].partition("```")[0]
            assert json.loads(behind) == ANSWERS[told[0]]
