"""Trait Documents: the text of HTML, PDF and text files. Served by the node."""

from __future__ import annotations

from quire.core.errors import InvalidArgument
from quire.core.traits import Trait
from quire.programs.api.queued import TraitFunctions
from quire.programs.services.documents import DocumentKind, kind_of


class DocumentsFunctions(TraitFunctions):
    trait = Trait.DOCUMENTS

    async def read_document(
        self, content: bytes | str, *, name: str = "document", kind: DocumentKind | None = None
    ) -> str:
        """The text of a document, read in a process with limits; nothing that it links to is
        fetched.

        ``content``: the file. ``kind``: text (UTF-8; Markdown stays as it is), html (its main text)
        or pdf; by default the kind that the suffix of ``name`` stands for. A program's documents
        are read one after the other.

        Raises:
            InvalidArgument: an unknown kind, an empty or damaged file, one that is encrypted or has
                no text, over 32 MiB (6 MiB from a sandboxed program), over 4 Mi characters, or more
                time or memory than a document may take. The message names the document.
            ConfigError: html and pdf need the extra ``workflows``.
        """
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogatepass")
        if not isinstance(content, bytes | bytearray | memoryview):
            raise InvalidArgument(
                f"read_document: content is bytes or text, not {type(content).__name__}"
            )
        text: str = await self._issuer.ask(
            "documents.read", content=bytes(content), name=name, kind=kind or kind_of(name)
        )
        return text
