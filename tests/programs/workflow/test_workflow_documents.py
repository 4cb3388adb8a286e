"""Documents of a query: which forms are accepted, and who reads what is no text yet."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from quire.core.errors import InvalidArgument
from quire.programs.workflow import App, Engine, Node, documents, workflow
from quire.programs.workflow.documents import checked_files, texts_read
from quire.programs.workflow.running import with_texts
from quire.testing.local_node import scripted_node

PDF = base64.b64encode(b"%PDF").decode()


async def reading(content: bytes, *, name: str, kind: str) -> str:
    return f"{kind} {name}: {content.decode()}"


async def test_what_is_no_text_is_read_and_the_rest_left_as_it_is() -> None:
    given = [
        {"name": "a.md", "text": "# A"},
        {"name": "b.html", "text": "<p>é"},
        {"name": "c.pdf", "base64": PDF},
        {"name": "d.html", "text": "taken as it is", "kind": "text"},
        {"name": "e.txt", "base64": base64.b64encode(b"plain").decode()},
    ]
    texts = [one["text"] for one in await texts_read(reading, given)]
    assert texts == [
        "# A", "html b.html: <p>é", "pdf c.pdf: %PDF", "taken as it is", "text e.txt: plain"
    ]  # fmt: skip
    assert given[1] == {"name": "b.html", "text": "<p>é"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "a.md", "text": "x", "base64": PDF}, r"\[0\] is \{.*: give \{"),
        (
            {"name": "a.md", "text": "x", "url": "y"},
            r"\[0\] is \{.*: give .* no address is fetched, so send",
        ),
        ({"name": "a.md", "text": 1}, r"\[0\] is \{.*: give \{"),
        ({"name": "a.md", "text": "x", "kind": "docx"}, "is of kind 'docx': give one of text, htm"),
        ({"name": "a.pdf", "base64": " "}, r"\('a\.pdf'\) is empty"),
        ({"name": "a.pdf", "base64": "%%%="}, r"'a\.pdf', whose base64 is damaged"),
        ({"name": "a.pdf", "base64": PDF * 9}, r"\('a\.pdf'\) has more than 16 bytes: divide it"),
        ({"name": "a.txt", "text": "x" * 65}, "has 65 characters; at most 64 are allowed"),
    ],
)
async def test_other_forms_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, given: Any, message: str
) -> None:
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 16)
    monkeypatch.setattr(documents, "MAX_CHARS", 64)
    with pytest.raises(InvalidArgument, match=message):
        await texts_read(reading, [given])


async def test_texts_that_are_too_long_together_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "MAX_CHARS", 40)
    page = {"name": "a.html", "text": "<p>"}
    assert len(checked_files([page] * 3)) == 3
    with pytest.raises(InvalidArgument, match="has 48 characters; at most 40"):
        await texts_read(reading, [page] * 3)


@pytest.mark.parametrize(("num_words", "num_chunks"), [(256, 1), (257, 2), (482, 2), (483, 3)])
async def test_a_chunk_has_256_words_of_which_the_first_30_end_the_one_before(
    num_words: int, num_chunks: int
) -> None:
    """Unless the component says otherwise."""
    app = App("app", [Engine("chunker")])
    app.update_template([Node("chunker", {"files": "documents"}, {"chunks": "texts"}, name="cut")])
    words = [f"w{n}" for n in range(num_words)]
    async with scripted_node("") as node:
        query = json.dumps({"files": [{"name": "a.txt", "text": " ".join(words)}]})
        chunks = (await node.run(workflow(app), query))["chunks"]
    assert len(chunks) == num_chunks
    assert [chunk.split() for chunk in chunks] == [
        words[226 * n : 226 * n + 256] for n in range(num_chunks)
    ]


async def test_nothing_is_read_for_a_query_that_is_refused() -> None:
    async def unused(content: bytes, *, name: str, kind: str) -> str:
        raise AssertionError("it is read although the query cannot run")

    app = App("app", [Engine("chunker")])
    config = {"chunk_size": 4, "overlap": 0}
    node = Node("chunker", {"files": "documents"}, {"chunks": "texts"}, None, config, name="cut")
    app.update_template([node])
    query = {"files": [{"name": "a.pdf", "base64": PDF}]}
    with pytest.raises(InvalidArgument, match="cut has no 'size'"):
        await with_texts(unused, app, query, {"cut": {"size": 1}})
    with pytest.raises(InvalidArgument, match="no input 'more'"):
        await with_texts(unused, app, {**query, "more": 1}, {})
    read = await with_texts(reading, app, query, {})
    assert read["files"][0]["text"] == "pdf a.pdf: %PDF"
