"""``read_document``: what reaches the node's readers of documents, and what is no document."""

from __future__ import annotations

from typing import Any

import pytest
from programs_port import Ports

from quire.core.calls import AskService
from quire.core.errors import InvalidArgument
from quire.programs.api import connect_api


async def test_a_document_is_bytes_or_text_and_its_name_tells_its_kind(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = connect_api(ports.connect)
    asked: list[dict[str, Any]] = []

    async def ask(question: AskService, undo: str | None = None) -> str:
        assert question.name == "documents.read"
        asked.append(dict(question.arguments))
        return "what it says"

    monkeypatch.setattr(ports.port, "ask", ask)
    for content, kept in (
        ("hällo", "hällo".encode()),
        (b"\xff", b"\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"cd"), b"cd"),
    ):
        assert await api.read_document(content, name="a.md") == "what it says"  # type: ignore[arg-type]
        assert asked.pop() == {"content": kept, "name": "a.md", "kind": "text"}
    await api.read_document(b"<p>", name="a.md", kind="html")
    assert asked.pop()["kind"] == "html"
    with pytest.raises(InvalidArgument, match="content is bytes or text, not int"):
        await api.read_document(3)  # type: ignore[arg-type]
    assert not asked
    api.close()
