"""Reads the repository's Markdown: fenced blocks, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block and where it stands."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that a reader is pointed to."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str | None = None) -> Iterator[Block]:
    """The fenced blocks of all pages, or those of one language."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if language is None or match.group(1) == language:
                line = text.count("\n", 0, match.start()) + 1
                yield Block(page, line, match.group(1), match.group(2))


def commands() -> Iterator[tuple[Block, str]]:
    """Every command of the bash blocks, without comments."""
    for block in blocks("bash"):
        for command in _joined(block.text.splitlines()):
            if command and not command.startswith("#"):
                yield block, command


def _joined(lines: list[str]) -> Iterator[str]:
    """One command each, also where a quotation or a backslash goes over the end of a line."""
    pending = ""
    for line in lines:
        pending += line
        command = re.sub(r"\s+#.*$", "", pending).strip()
        try:
            shlex.split(command)
        except ValueError:
            pending = pending.removesuffix("\\") if pending.endswith("\\") else pending + "\n"
        else:
            yield command
            pending = ""
    assert not pending, f"a command without an end: {pending}"


def links(page: Path) -> Iterator[str]:
    """Targets of the links of one page."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return (match.group(1) for match in _LINK.finditer(text))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in _HEADING.findall(text)
    }
