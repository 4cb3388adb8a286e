"""The pages themselves: links lead somewhere, generated ones are current, decisions keep form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docs_markdown import ROOT, anchors, blocks, links, pages

from tools.pages.cli import reference

LANGUAGES = {"", "python", "bash", "json", "toml", "yaml", "text"}
DECISION_PARTS = ("**Context.**", "**Decision.**", "**Consequences.**")


def _names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("page", pages(), ids=_names(pages()))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"[a-z]+://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert target.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}"


def test_fences_have_a_language_that_the_tests_know() -> None:
    for block in blocks():
        assert block.language in LANGUAGES, block.place


def test_the_command_line_reference_is_current() -> None:
    page = ROOT / "docs" / "reference" / "cli.md"
    assert page.read_text(encoding="utf-8") == reference(), "run 'make docs'"


def test_every_command_has_an_example_and_every_option_a_help() -> None:
    text = reference()
    sections = text.split("\n## ")[1:]
    assert len(sections) >= 10
    for section in sections:
        assert "```bash\n" in section, section.splitlines()[0]
        for row in re.findall(r"^\| `.*$", section, re.MULTILINE):
            assert row.split(" | ")[1].strip(), row


decisions = sorted((ROOT / "docs" / "decisions").glob("*.md"))


@pytest.mark.parametrize("page", decisions, ids=_names(decisions))
def test_a_decision_is_short_and_says_why(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    number = page.name.split("-")[0]
    assert re.match(rf"# {number} \S", text)
    assert all(part in text for part in DECISION_PARTS)
    assert len(text.splitlines()) <= 12


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(page.name[:3]) for page in decisions] == list(range(1, len(decisions) + 1))


def test_no_page_names_a_private_place() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", text), page
