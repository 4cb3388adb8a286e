"""Questions about facts in files: the files say what is asked, in every format."""

from __future__ import annotations

import asyncio
import re
from random import Random

import pytest

from benchmarks.ayo.answers import Asked, questions
from benchmarks.ayo.written import WRITERS
from quire.node.documents.readers import DocumentReaders
from quire.programs.services.documents import kind_of
from training.corpus.document import Split, in_split
from training.corpus.facts import UNKNOWN
from training.corpus.pages import Page, draw_page

pytest.importorskip("pypdf")
pytest.importorskip("trafilatura")


def page() -> Page:
    return draw_page(Random(5), Split.HELD_OUT, 30, other_share=1.0)


async def _read(kind: str, content: bytes) -> str:
    if kind == "md":
        return content.decode()
    readers = DocumentReaders()
    try:
        name = f"page.{kind}"
        return await readers.read(name, kind_of(name), content)
    finally:
        await asyncio.to_thread(readers.close)


@pytest.mark.parametrize("kind", WRITERS)
def test_every_sentence_is_read_from_every_format(kind: str) -> None:
    made = page()
    text = asyncio.run(_read(kind, WRITERS[kind](made)))
    flat = " ".join(text.split())
    for section in made.sections:
        assert section.heading in flat
        for sentence in section.sentences:
            assert sentence.text in flat


def test_what_is_no_text_of_the_page_is_not_read() -> None:
    text = asyncio.run(_read("html", WRITERS["html"](page())))
    assert "All pages" not in text
    assert "archive" not in text


def _file(asked: Asked) -> str:
    return " ".join(asked.content.decode("utf-8", "replace").split())


def test_questions_are_held_out_repeatable_and_about_their_file() -> None:
    made = list(questions(30, 0, absent=False))
    assert made == list(questions(30, 0, absent=False))
    assert {one.kind for one in made} == set(WRITERS)
    for one in made:
        name = _name(one)
        assert in_split(name.lower(), Split.HELD_OUT)
        if one.kind != "pdf":
            assert one.answer in _file(one)
            assert name in _file(one)


def test_a_question_without_an_answer_is_about_a_name_of_its_file() -> None:
    for one in questions(20, 0, absent=True):
        assert one.answer == UNKNOWN
        found = re.search(r"the (\w+) of (\w+)", one.question)
        assert found is not None
        attribute, name = found.groups()
        if one.kind == "md":
            said = (
                f"The {attribute} of {name} is",
                f"{name}'s {attribute}",
                f"{name} has {attribute}",
            )
            assert name in _file(one)
            assert not any(form in _file(one) for form in (*said, f"{name}: {attribute}"))


def _name(asked: Asked) -> str:
    found = re.search(r"of (\w+)\?", asked.question)
    assert found is not None
    return found.group(1)
