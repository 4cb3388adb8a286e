"""The process that turns HTML and PDF files into text. Run by path; the node imports only its
constants.

It lowers its memory limit, then answers file after file until its input closes. It must not import
Quire, so that it starts fast and stays small. Files are untrusted: one that crashes a parser, or
expands without bound, ends only this process. Nothing is fetched: neither what a page links to nor
what it includes.
"""

from __future__ import annotations

import io
import json
import logging
import os
import resource
import signal
import sys
from typing import Any

MISSING = "missing"
"""The error of a kind whose package is not installed."""
_MAX_ERROR_CHARS = 300


class Refused(Exception):
    """The file is not accepted; the message says why, for its sender."""


def page_text(file: bytes) -> str:
    """The main text of a page, without navigation and footer; all its text if no part of it looks
    like the main one."""
    import lxml.etree
    import trafilatura

    page: Any = file
    try:
        tree, is_whole = _parsed(file, huge=False)
        if not is_whole:
            tree, is_whole = _parsed(file, huge=True)
            page = tree
    except lxml.etree.ParserError:  # lxml raises it for a page without an element
        return ""
    if not is_whole:
        raise Refused("has elements that are nested too deeply: simplify it, or convert it to text")
    main: str | None = trafilatura.extract(page, include_comments=False, favor_recall=True)
    if main is not None and main.strip():
        return main
    for unread in tree.xpath("//script|//style|//template|//noscript|//comment()"):
        unread.drop_tree()
    lines = (" ".join(text.split()) for text in tree.itertext())
    return "\n".join(line for line in lines if line)


def _parsed(file: bytes, *, huge: bool) -> tuple[Any, bool]:
    """The tree of a page, and whether the parser's limits let all of it in: 256 levels and texts of
    10 MB, or 2048 levels if ``huge``. Only its log tells; there, wrong bytes are fatal errors too.
    """
    import lxml.etree
    import lxml.html

    parser = lxml.html.HTMLParser(huge_tree=huge, encoding=_encoding(file))
    tree = lxml.html.document_fromstring(file, parser=parser)
    limit = lxml.etree.ErrorTypes.ERR_RESOURCE_LIMIT
    return tree, not parser.error_log.filter_types(limit)


def _encoding(file: bytes) -> str | None:
    """UTF-8 if the bytes are that, as trafilatura reads them; None: the one that the page names, or
    Latin-1."""
    try:
        file.decode()
    except UnicodeDecodeError:
        return None
    return None if file.isascii() else "utf-8"


def pdf_text(file: bytes) -> str:
    """The text of every page, an empty line between two."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    reader = PdfReader(io.BytesIO(file))
    try:
        if reader.is_encrypted and not reader.decrypt(""):
            raise Refused("is encrypted: remove its password")
        pages = [page.extract_text() for page in reader.pages]
    except (DependencyError, FileNotDecryptedError) as exc:
        raise Refused("is encrypted: remove its password") from exc
    if pages and not any(page.strip() for page in pages):
        raise Refused(
            f"has no text on its {len(pages)} pages: they may be pictures, so give it with "
            "recognised text (OCR)"
        )
    return "\n\n".join(pages)


READERS = {"html": page_text, "pdf": pdf_text}


def read(kind: str, file: bytes, max_chars: int) -> str:
    """The text of ``file``.

    Raises:
        Refused: it cannot be read, has no text, or more than ``max_chars``.
    """
    try:
        text = READERS[kind](file)
    except (Refused, MemoryError, ImportError):
        raise
    except RecursionError as exc:
        raise Refused("has parts that are nested too deeply: simplify it") from exc
    except Exception as exc:  # parsers raise unrelated types for damaged files
        raise Refused(
            f"cannot be read as {kind.upper()}, it may be damaged: {str(exc) or type(exc).__name__}"
        ) from exc
    # What some PDF fonts give and nobody can store: half of a surrogate pair, NUL.
    text = text.encode("utf-8", "replace").decode().replace("\0", "?")
    if not text.strip():
        raise Refused("has no text: leave it out")
    if len(text) > max_chars:
        raise Refused(
            f"has {len(text)} characters of text; at most {max_chars} are read: divide it"
        )
    return text


def main() -> None:
    """Arguments: bytes of memory, seconds of processor time for a file. Each request is a line of
    JSON (``kind``, ``num_bytes``, ``max_chars``) and the file; each answer a line of JSON
    (``error``, or ``num_bytes``) and the text."""
    max_memory_bytes, max_file_s = int(sys.argv[1]), float(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (max_memory_bytes, max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may have set it to be ignored
    questions, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # what a parser prints must not stand among the answers
    logging.disable()  # parsers log much about damaged files
    for line in questions:
        question = json.loads(line)
        file = questions.read(question["num_bytes"])
        # beyond this time the kernel ends the process, even inside native code
        signal.setitimer(signal.ITIMER_PROF, max_file_s)
        text = b""
        try:
            text = read(question["kind"], file, question["max_chars"]).encode()
            answer: dict[str, object] = {"num_bytes": len(text)}
        except Refused as exc:
            answer = {"error": str(exc)[:_MAX_ERROR_CHARS]}
        except ImportError:
            answer = {"error": MISSING}
        except MemoryError:
            answer = {"error": "takes too much memory to read: divide it"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(json.dumps(answer).encode() + b"\n" + text)
        answers.flush()


if __name__ == "__main__":
    main()
